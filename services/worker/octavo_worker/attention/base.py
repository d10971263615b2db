"""The contract of attention over pages. Knows no model and no scheduler: only rows, block tables and positions.

T fed tokens of all rows one after another, N query heads, G key-value heads, H head dim, R rows.
The pool is `[blocks, layers, 2, block, G, H]`: a block of all layers, K and V, is one contiguous region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from octavo_common.errors import FailedPrecondition


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """What the pool holds."""

    num_blocks: int
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNeed:
    """What a backend is asked to serve."""

    device: str
    # Name of a torch dtype, such as float32.
    dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    # Whether some layer's tokens see the last keys only.
    sliding_window: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCaps:
    """What a backend can do; None means anything."""

    devices: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    # Head dim and block size must be multiples of these.
    head_dim_multiple: int = 1
    block_size_multiple: int = 1
    sliding_window: bool = False

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """Every reason why these capabilities do not cover the need; empty when they do."""
        reasons: list[str] = []
        if self.devices is not None and need.device not in self.devices:
            reasons.append(f"device {need.device} is not one of {sorted(self.devices)}")
        if self.dtypes is not None and need.dtype not in self.dtypes:
            reasons.append(f"dtype {need.dtype} is not one of {sorted(self.dtypes)}")
        if need.head_dim % self.head_dim_multiple:
            reasons.append(f"head dim {need.head_dim} is not a multiple of {self.head_dim_multiple}")
        if need.block_size % self.block_size_multiple:
            reasons.append(f"block size {need.block_size} is not a multiple of {self.block_size_multiple}")
        if need.sliding_window and not self.sliding_window:
            reasons.append("sliding windows are not served")
        return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class AttnBatch:
    """Who attends to what in one step. Row r feeds num_tokens_R[r] tokens from position starts_R[r] on."""

    starts_R: np.ndarray  # int32 [R]
    num_tokens_R: np.ndarray  # int32 [R]
    # int32 [R, longest table]; entries behind a row's own blocks mean nothing.
    tables_RB: np.ndarray
    # int64 [T]: block * block_size + offset of each fed token.
    slots_T: np.ndarray


AttnPlan = Any
"""What a backend made of a batch; only that backend looks into it."""


class AttentionBackend(Protocol):
    """Attention over pages. Plans once per step; attends once per layer."""

    @property
    def name(self) -> str:
        """Name in settings and messages."""
        ...

    @property
    def recordable(self) -> DecodeAttention | None:
        """What it offers for decode steps to be recorded; None if they cannot be."""
        ...

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """Every reason why it cannot serve this here; empty when it can."""
        ...

    def kv_shape(self, spec: KVSpec) -> tuple[int, ...]:
        """Shape of the pool."""
        ...

    def plan(self, batch: AttnBatch) -> AttnPlan:
        """What forward needs, worked out once per step."""
        ...

    def attend(
        self,
        q_TNH: Tensor,
        k_TGH: Tensor,
        v_TGH: Tensor,
        kv: Tensor,
        plan: AttnPlan,
        layer: int,
        window: int | None = None,
    ) -> Tensor:
        """Put the fed tokens' keys and values into their slots of `kv`, then attend causally, scaled by 1/sqrt(H).

        With a window each token sees that many keys at most: its own and the last ones before it.
        The two are one call because a backend may do them in one pass. `[T, N, H]`, valid until the next call.
        """
        ...


class DecodePlan(Protocol):
    """A plan of rows of one token each, whose tensors keep their addresses."""

    def refill(self, batch: AttnBatch) -> None:
        """Take a batch of at most as many rows, blocks and parts; what is left over becomes padding.

        Padding sees no key and writes nothing.
        """
        ...


class DecodeAttention(Protocol):
    """What a backend must offer for decode steps to be recorded once and replayed."""

    def num_parts(self, batch: AttnBatch) -> int | None:
        """Parts of the longest context, which shape what is launched. None: such a batch cannot be recorded."""
        ...

    def padded_plan(self, *, num_rows: int, num_blocks: int, num_parts: int) -> DecodePlan:
        """A plan of padding."""
        ...

    def attend(
        self, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, kv: Tensor, plan: Any, layer: int, window: int | None = None
    ) -> Tensor:
        """As the backend's own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A backend whose libraries are not there: it serves nothing, and says why."""

    name: str
    reason: str

    @property
    def recordable(self) -> DecodeAttention | None:
        """Nothing."""
        return None

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """Why it is not there."""
        return [self.reason]

    def kv_shape(self, spec: KVSpec) -> tuple[int, ...]:
        """Never asked: it is not selected."""
        raise NotImplementedError(self.reason)

    def plan(self, batch: AttnBatch) -> AttnPlan:
        """Never asked: it is not selected."""
        raise NotImplementedError(self.reason)

    def attend(
        self, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor, kv: Tensor, plan: Any, layer: int, window: int | None = None
    ) -> Tensor:
        """Never asked: it is not selected."""
        raise NotImplementedError(self.reason)


def kv_shape(spec: KVSpec) -> tuple[int, ...]:
    """The shape that all backends without a format of their own use."""
    return (spec.num_blocks, spec.num_layers, 2, spec.block_size, spec.num_kv_heads, spec.head_dim)


class NoAttentionBackend(FailedPrecondition):
    """No backend can serve the model here; the message lists every backend's reasons."""

    code = "NO_ATTENTION_BACKEND"


def select(backends: Sequence[AttentionBackend], need: AttentionNeed) -> AttentionBackend:
    """The first backend without a reason against it. Raises NoAttentionBackend with all reasons of all."""
    refused: list[str] = []
    for backend in backends:
        reasons = backend.reasons_against(need)
        if not reasons:
            return backend
        refused.append(f"{backend.name}: {'; '.join(reasons)}")
    raise NoAttentionBackend("no attention backend can serve this model: " + " | ".join(refused or ["none is known"]))
