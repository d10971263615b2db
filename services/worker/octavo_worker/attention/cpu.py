"""Attention on a CPU in float32 by compiled loops over pages. Nothing here grows with the context in Python."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_worker.attention.base import AttentionCaps, AttentionNeed, AttnBatch, KVSpec, kv_shape

try:
    from octavo_worker.kernels import paged_attention as kernel

    _MISSING = ""
except ImportError as error:  # numba is an extra of the worker
    kernel = None
    _MISSING = f"numba cannot be imported ({error})"

_TILE = 16
_CAPS = AttentionCaps(
    devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}), head_dim_multiple=16, block_size_multiple=8
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPlan:
    """Arrays of one step that the loops read; they live as long as the plan."""

    tiles: np.ndarray  # int32 [tiles, 4]: row, first fed token of the row, first pair, number of pairs
    tables_RB: np.ndarray
    limits_T: np.ndarray  # int32 [T]: how many keys a token sees, itself included
    slots_T: np.ndarray
    max_keys: int


class CpuAttention:
    """Paged attention for mixed batches. Not for several threads at once: it reuses its work buffers."""

    name = "cpu"

    def __init__(self, *, num_heads: int, num_kv_heads: int, num_threads: int) -> None:
        self._group = num_heads // num_kv_heads
        self._num_threads = num_threads
        self._scratch = np.empty(0, np.float32)
        self._out = torch.empty(0)

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """What it lacks for this need."""
        return ([_MISSING] if _MISSING else []) + _CAPS.reasons_against(need)

    def kv_shape(self, spec: KVSpec) -> tuple[int, ...]:
        """Shape of the pool."""
        return kv_shape(spec)

    def plan(self, batch: AttnBatch) -> CpuPlan:
        """Cut each row's (token, head of a group) pairs into tiles of 16; the longest tiles run first."""
        counts_R, starts_R = batch.num_tokens_R.astype(np.int64), batch.starts_R.astype(np.int64)
        first_R = np.cumsum(counts_R) - counts_R
        num_tiles_R = -(-counts_R * self._group // _TILE)
        row_of = np.repeat(np.arange(len(counts_R)), num_tiles_R)
        first_pair = (np.arange(len(row_of)) - np.repeat(np.cumsum(num_tiles_R) - num_tiles_R, num_tiles_R)) * _TILE
        num_pairs = np.minimum(_TILE, counts_R[row_of] * self._group - first_pair)
        cost = starts_R[row_of] + (first_pair + num_pairs) // self._group
        order = np.argsort(-cost, kind="stable")
        tiles = np.stack([row_of, first_R[row_of], first_pair, num_pairs], axis=1)[order].astype(np.int32)
        within_T = np.arange(int(counts_R.sum())) - np.repeat(first_R, counts_R)
        limits_T = (np.repeat(starts_R, counts_R) + within_T + 1).astype(np.int32)
        return CpuPlan(
            tiles=np.ascontiguousarray(tiles),
            tables_RB=np.ascontiguousarray(batch.tables_RB, dtype=np.int32),
            limits_T=limits_T,
            slots_T=np.ascontiguousarray(batch.slots_T, dtype=np.int64),
            max_keys=int(limits_T.max()),
        )

    def write_kv(self, k_TGH: Tensor, v_TGH: Tensor, kv: Tensor, plan: CpuPlan, layer: int) -> None:
        """Copy keys and values to their slots."""
        assert kernel is not None
        if k_TGH.stride() != v_TGH.stride() or k_TGH.stride(2) != 1:
            k_TGH, v_TGH = k_TGH.contiguous(), v_TGH.contiguous()
        _, _, _, block_size, num_heads, head_dim = kv.shape
        num_tokens = k_TGH.shape[0]
        args = np.array(
            [
                *(0, -(-num_tokens // 16), 0, k_TGH.data_ptr(), v_TGH.data_ptr(), k_TGH.stride(0), k_TGH.stride(1)),
                *(kv.data_ptr(), kv.stride(0), layer * kv.stride(1), layer * kv.stride(1) + kv.stride(2)),
                *(kv.stride(3), num_heads, head_dim, block_size, plan.slots_T.ctypes.data, num_tokens),
            ],
            dtype=np.int64,
        )
        # A decode batch is copied faster than threads are woken.
        kernel.write.run(args, self._num_threads if num_tokens > 64 else 1)

    def forward(self, q_TNH: Tensor, kv: Tensor, plan: CpuPlan, layer: int) -> Tensor:
        """Causal attention; the result is overwritten by the next call."""
        assert kernel is not None
        if q_TNH.stride(2) != 1:
            q_TNH = q_TNH.contiguous()
        num_tokens, num_heads, head_dim = q_TNH.shape
        _, _, _, block_size, num_kv_heads, _ = kv.shape
        if self._out.shape[1:] != (num_heads, head_dim) or self._out.shape[0] < num_tokens:
            self._out = torch.empty(num_tokens, num_heads, head_dim)
        out = self._out[:num_tokens]
        # The last page is scored whole.
        size = kernel.scratch_floats(-(-plan.max_keys // block_size) * block_size, head_dim)
        if self._scratch.size < size * self._num_threads:
            self._scratch = np.empty(2 * size * self._num_threads, np.float32)
        args = np.array(
            [
                *(0, len(plan.tiles) * num_kv_heads, 0, q_TNH.data_ptr(), q_TNH.stride(0), q_TNH.stride(1)),
                *(kv.data_ptr(), kv.stride(0), layer * kv.stride(1), layer * kv.stride(1) + kv.stride(2)),
                *(kv.stride(3), head_dim, self._group, num_kv_heads, block_size, plan.tiles.ctypes.data),
                *(plan.tables_RB.ctypes.data, plan.tables_RB.shape[1], plan.limits_T.ctypes.data),
                *(out.data_ptr(), out.stride(0), out.stride(1), self._scratch.ctypes.data, size),
                round(2**32 / math.sqrt(head_dim)),
            ],
            dtype=np.int64,
        )
        kernel.attend.run(args, self._num_threads)
        return out
