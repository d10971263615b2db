"""How a loaded model is computed: its runner and the memory of its keys and values, by device and precision.

The only place that knows what a precision needs beside its weights; `gpu_computing` is its half for GPUs. Knows no
scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from octavo_common.errors import FailedPrecondition
from octavo_worker.attention.base import AttentionBackend, AttentionNeed, KVSpec, select
from octavo_worker.kv.local import Copy, copy_in_order
from octavo_worker.models.base import CPU, CUDA, LoadedModel, ModelConfig
from octavo_worker.models.layers import linear_library
from octavo_worker.models.precision import BFLOAT16, FLOAT32, W4A8, W4A16, W8A8
from octavo_worker.runtime.devices import default_kv_bytes
from octavo_worker.runtime.inputs import ForwardInputs
from octavo_worker.runtime.memory import allocate_pool, block_bytes
from octavo_worker.runtime.runner import ModelRunner
from octavo_worker.verify.base import Verifier
from octavo_worker.verify.coupled import Coupled

if TYPE_CHECKING:
    from octavo_worker.models.packed_weights import PackedWeights
    from octavo_worker.runtime.arithmetic import Arithmetic

BLOCK_SIZE = 16


class Runner(Protocol):
    """Computes steps of one model. T fed tokens, S wanted positions, D hidden, V vocabulary."""

    def forward(self, inputs: ForwardInputs) -> Tensor:
        """Hidden states ``[T, D]``, valid until the next call; writes the tokens' keys and values into the pool."""
        ...

    def logits(self, hidden_TD: Tensor, counts_R: list[int], wanted_S: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits of the wanted positions as (rows, float32 ``[S, V]``), valid until the next is asked for."""
        ...

    def poison(self, blocks: list[int]) -> None:
        """Make what blocks hold unusable, so that a wrong mask shows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDeps:
    """What attention backends are built from."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    # Of queries, and of keys and values where they lie as plain floats.
    dtype: torch.dtype
    num_threads: int


BackendFactory = Callable[[BackendDeps, str], Sequence[AttentionBackend]]
"""``factory(deps, name)``: the backends to choose from in order of preference; ``auto`` is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a computation may take."""

    # None takes what the device has by rule.
    kv_bytes: int | None
    num_threads: int
    # Most rows of a step.
    max_sequences: int
    # Whether decode steps are recorded and replayed where the device can.
    records_decode: bool
    attention_backend: str
    backends: BackendFactory
    # Debug: blocks hold NaN until they are written.
    poison: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """A model that is ready to compute."""

    runner: Runner
    # Blocks along the first dimension; a block is one contiguous region.
    pool: Tensor
    # Copies blocks of the pool.
    copy: Copy = copy_in_order
    # Turns logits into tokens.
    verifier: Verifier = field(default_factory=Coupled)
    attention_backend: str
    # What tokens depend on beside model and request.
    numerics_id: str
    # Whether logits are the same bit by bit whatever the batch, the chunks and the threads.
    exact: bool

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.pool.shape[0]


def compute(loaded: LoadedModel, resources: Resources) -> Computing:
    """Make the runner of a loaded model. Raises typed errors: no attention backend, memory for no block."""
    if loaded.device == CUDA:
        # Needs Triton.
        from octavo_worker.runtime.gpu_computing import compute_on_gpu

        return compute_on_gpu(loaded, resources)
    return _COMPUTING[loaded.precision](loaded, resources)


def _in_floats(loaded: LoadedModel, resources: Resources) -> Computing:
    """Torch's float32 products, attention by a backend: equal up to rounding in any company."""
    model = loaded.config
    dtype: torch.dtype = getattr(torch, model.dtype)
    attention, shape = select_attention(model, resources, CPU)
    num_blocks = num_blocks_of(_kv_bytes(resources), model, dtype)
    pool = allocate_pool(shape(num_blocks), dtype, poison=resources.poison)
    return Computing(
        runner=ModelRunner(model=loaded.model, attention=attention, kv=pool),
        pool=pool,
        attention_backend=attention.name,
        numerics_id=f"{model.dtype}/{attention.name}-torch-{torch_version()}/{linear_library()}-{_isa()}"
        f"/t{resources.num_threads}",
        exact=False,
    )


def select_attention(
    model: ModelConfig, resources: Resources, device: str
) -> tuple[AttentionBackend, Callable[[int], tuple[int, ...]]]:
    """The backend, and the shape of its pool for a number of blocks. Raises NoAttentionBackend."""
    deps = BackendDeps(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=BLOCK_SIZE,
        dtype=getattr(torch, model.dtype),
        num_threads=resources.num_threads,
    )
    need = AttentionNeed(
        device=device,
        dtype=model.dtype,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=BLOCK_SIZE,
        sliding_window=bool(model.windows),
    )
    attention = select(resources.backends(deps, resources.attention_backend), need)

    def shape(num_blocks: int) -> tuple[int, ...]:
        return attention.kv_shape(
            KVSpec(
                num_blocks=num_blocks,
                num_layers=model.num_layers,
                block_size=BLOCK_SIZE,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
            )
        )

    return attention, shape


def _in_integers(loaded: LoadedModel, resources: Resources) -> Computing:
    """Integer products and int8 keys and values."""
    from octavo_worker.runtime.integer_arithmetic import IntegerArithmetic

    return _by_stages(loaded, resources, IntegerArithmetic())


def _in_shorts(loaded: LoadedModel, resources: Resources) -> Computing:
    """Products, keys and values in bfloat16."""
    from octavo_worker.runtime.short_arithmetic import ShortArithmetic

    return _by_stages(loaded, resources, ShortArithmetic())


def _by_stages(loaded: LoadedModel, resources: Resources, arithmetic: Arithmetic) -> Computing:
    """Compiled stages whose sums have a fixed order: equal bit by bit in any company."""
    # Compiles its kernels when it comes in, for seconds if they are not kept on disk.
    from octavo_worker.runtime.packed_runner import PackedRunner

    model = loaded.config
    one_block = arithmetic.attention.block_bytes(model.num_layers, model.num_kv_heads, model.head_dim)
    num_blocks = _num_blocks(_kv_bytes(resources), one_block)
    pool = allocate_pool((num_blocks, one_block), torch.uint8, poison=resources.poison)
    return Computing(
        runner=PackedRunner(
            config=model,
            weights=loaded.model,
            arithmetic=arithmetic,
            kv=pool,
            num_threads=resources.num_threads,
            refine=partial(_refined, loaded),
        ),
        pool=pool,
        attention_backend=arithmetic.attention_name,
        # Threads do not matter. Of torch are the powers of the angles, by which instruction set it takes them.
        numerics_id=f"{loaded.precision}-{arithmetic.numerics}-torch-{torch_version()}/{_isa()}",
        exact=True,
    )


def _refined(loaded: LoadedModel, weights: PackedWeights, layers: list[int]) -> PackedWeights:
    if not layers:
        return weights
    from octavo_worker.models.packed_weights import refine

    with loaded.reopen() as checkpoint:
        return refine(weights, checkpoint, layers)


_COMPUTING: Mapping[str, Callable[[LoadedModel, Resources], Computing]] = {
    FLOAT32: _in_floats,
    BFLOAT16: _in_shorts,
    W8A8: _in_integers,
    W4A8: _in_integers,
    W4A16: _in_shorts,
}


def num_blocks_of_longest(model: ModelConfig, num_blocks: int) -> int:
    """Blocks of the longest sequence."""
    return min(-(-model.context_length // BLOCK_SIZE), num_blocks)


def num_blocks_of(kv_bytes: int, model: ModelConfig, dtype: torch.dtype) -> int:
    """Blocks of plain floats that so many bytes hold. Raises FailedPrecondition if none."""
    one_block = block_bytes(
        num_layers=model.num_layers,
        block_size=BLOCK_SIZE,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype=dtype,
    )
    return _num_blocks(kv_bytes, one_block)


def torch_version() -> str:
    """Major and minor."""
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _kv_bytes(resources: Resources) -> int:
    return default_kv_bytes(torch.device(CPU)) if resources.kv_bytes is None else resources.kv_bytes


def _num_blocks(kv_bytes: int, one_block: int) -> int:
    if kv_bytes < one_block:
        raise FailedPrecondition(
            f"{kv_bytes} bytes hold no block of keys and values", hint="raise OCTAVO_WORKER_KV_BYTES"
        )
    return kv_bytes // one_block


def _isa() -> str:
    return torch.backends.cpu.get_cpu_capability().lower()
