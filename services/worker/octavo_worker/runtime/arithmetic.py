"""What a program of stages leaves open: how rows meet matrices, and how keys and values are kept.

Implementations are `integer_arithmetic` and `short_arithmetic`; the program itself, `packed_program`, names none.
T fed tokens, D hidden, I feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo_worker.kernels.attention_frame import AttentionLayer
from octavo_worker.kernels.program import Stage
from octavo_worker.models.base import Floats
from octavo_worker.models.packed import Matrix
from octavo_worker.models.packed_weights import LinearWeights


class Rows(Protocol):
    """Rows of one width as a product reads them. Each is made from floats by one stage, for one matrix."""

    def embed(self, matrix: Matrix, out: Floats) -> Sequence[Stage]:
        """Floats of the embedding's rows for the step's tokens; what it holds itself is lost."""
        ...

    def take(self, x_TD: Floats, matrix: Matrix) -> Stage:
        """From rows as they are."""
        ...

    def norm(self, x_TD: Floats, weight_D: Floats, eps: float, matrix: Matrix) -> Stage:
        """From the root mean square norm of rows."""
        ...

    def gate(self, gate_up_TI: Floats, matrix: Matrix) -> Stage:
        """From silu(gate) * up, for rows that hold the gate and then up."""
        ...

    def matmul(self, linear: LinearWeights, out: Floats, *, adds: bool = False) -> Stage:
        """Their product with a matrix, written to rows of floats or added to them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Keys and values of all layers in a pool of blocks of 16 tokens. The frame is `kernels.attention_frame`'s."""

    # Whether keys and values want to be mixed, and keys freed of their means, see `kernels.positions`.
    mixes_keys: bool
    # Bytes of a block, one contiguous region, by the numbers of layers and key-value heads, and the head dim.
    block_bytes: Callable[[int, int, int], int]
    # Work space of a thread for one head, by the most keys and the head dim.
    scratch_bytes: Callable[[int, int], int]
    # Puts the fed tokens' keys and values into the pool, then attends.
    stage: Callable[[AttentionLayer], Stage]


class Arithmetic(Protocol):
    """One way to compute."""

    @property
    def attention_name(self) -> str:
        """As a card tells its attention backend."""
        ...

    @property
    def numerics(self) -> str:
        """All that the bits of logits depend on beside weights and torch's angles."""
        ...

    @property
    def attention(self) -> Attention:
        """How keys and values are kept."""
        ...

    def rows(self, num_rows: int, width: int, num_threads: int) -> Rows:
        """Room for rows."""
        ...
