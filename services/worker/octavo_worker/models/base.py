"""What a model is to the rest of the worker: a config, a forward pass over flat tokens, logits, and its loaded parts.

Shapes: T fed tokens of all sequences one after another, S sampled positions, D hidden size, N query heads, G key-value
heads, H head dim, V vocabulary. Knows nothing of pages, batches or sequences: attention is a callable of the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from octavo_common.errors import OctavoError, Status

if TYPE_CHECKING:
    from octavo_common.text.bundle import TokenizerBundle

# Devices that a model is computed on, and what a setting says that leaves the choice to a rule.
CPU, CUDA = "cpu", "cuda"
AUTO = "auto"

Floats = NDArray[np.float32]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q_TNH, k_TGH, v_TGH) -> out_TNH``: writes K and V of the fed tokens and attends causally.

The three inputs may be strided views into one buffer (the last dim is dense), and are valid only during the call.
The output may be any tensor that views as ``[T, N * H]``; the model has read it before the next call.
"""


class InvalidModel(OctavoError):
    """A model's files are corrupt, incomplete, or of a kind that we do not run; the message names file and tensor."""

    status, code = Status.FAILED_PRECONDITION, "INVALID_MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How positions become angles: the base, how many dims rotate, and the scaling in Hugging Face's own terms."""

    theta: float = 10_000.0
    kind: str = "default"
    """One of ``default``, ``linear``, ``dynamic``, ``yarn``, ``llama3``, ``divisors``."""
    dim: int
    """Number of dims of a head that rotate."""
    scaling: Mapping[str, float | bool | None] = field(default_factory=dict)
    """The numbers of the scaling, under Hugging Face's names (``factor``, ``low_freq_factor``, ...)."""
    original_length: int = 0
    """For ``dynamic``: the longest sequence that is not stretched."""
    divisors: tuple[float, ...] = ()
    """For ``divisors`` (GGUF files that carry their scaling as a tensor): what each pair's frequency is divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that shape a model."""

    family: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    rms_eps: float
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    """Whether each head of q and k is normalised before it rotates."""
    windows: tuple[int | None, ...] = ()
    """How many keys a token sees in each layer, its own and the last ones before it; None is all. Empty: all in all."""
    context_length: int
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    """What we compute in."""

    def window(self, layer: int) -> int | None:
        """How many keys a token sees in a layer; None is all."""
        return self.windows[layer] if self.windows else None

    @property
    def stretches_beyond(self) -> int | None:
        """Length of a prompt beyond which its angles depend on that length (``dynamic`` rope); None when they never do.

        The prefix hash must then hold the length too.
        """
        return self.rope.original_length if self.rope.kind == "dynamic" else None

    @property
    def needs_prompt_lengths(self) -> bool:
        """Whether the forward pass wants the length of each token's prompt."""
        return self.stretches_beyond is not None


class Model(Protocol):
    """A loaded model. Not for several threads at once: it reuses its work buffers."""

    @property
    def config(self) -> ModelConfig:
        """The numbers that shape it."""
        ...

    def forward(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, *, prompt_lengths_T: Tensor | None = None
    ) -> Tensor:
        """Hidden states ``[T, D]`` after the final norm, for int64 tokens and positions ``[T]``.

        ``prompt_lengths_T`` (the length of each token's prompt) matters only if ``config.needs_prompt_lengths``.
        """
        ...

    def logits(self, hidden_SD: Tensor) -> Tensor:
        """Float32 logits ``[S, V]`` of some rows of what ``forward`` returned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model with what serves it."""

    model: Any
    """A Model for float32 and on a GPU; PackedWeights for precisions that compute by compiled stages."""
    precision: str = "float32"
    device: str = CPU
    """Where it is computed: CPU or CUDA."""
    config: ModelConfig
    bundle: TokenizerBundle
    digest: str
    """sha256 (hex) over the files that hold the weights."""
    name: str
    num_parameters: int
    weight_bytes: int
    """Bytes of memory that the weights take."""
    source: str
    """``gguf`` or ``safetensors``."""
    reopen: Callable[[], AbstractContextManager[Any]]
    """Opens the files again, a `checkpoint.Checkpoint`: for those who see later that they need more of them."""
    quantization: str = ""
    """The commonest type of the file's matrices, such as ``Q4_1``; empty for plain floats."""
