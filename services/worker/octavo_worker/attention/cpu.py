"""Attention on a CPU in float32 by compiled loops over pages. Nothing here grows with the context in Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from octavo_worker.attention.base import AttentionCaps, AttentionNeed, AttnBatch, KVSpec, kv_shape
from octavo_worker.attention.tiles import cut_tiles, visible_lengths

if TYPE_CHECKING:
    from octavo_worker.kernels.team import Arguments

try:
    from octavo_worker.kernels import paged_attention as kernel
    from octavo_worker.kernels import team

    _MISSING = ""
except ImportError as error:  # numba is an extra of the worker
    kernel = None
    team = None
    _MISSING = f"numba cannot be imported ({error})"

_CAPS = AttentionCaps(
    devices=frozenset({"cpu"}),
    dtypes=frozenset({"float32"}),
    head_dim_multiple=16,
    block_size_multiple=8,
    sliding_window=True,
)
# As good as no window: longer than any sequence.
_EVERYTHING = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPlan:
    """Arrays of one step that the loops read; they live as long as the plan."""

    tiles: np.ndarray  # int32 [tiles, 4]: row, first fed token of the row, first pair, number of pairs
    tables_RB: np.ndarray
    limits_T: np.ndarray  # int32 [T]: how many keys a token sees, itself included
    slots_T: np.ndarray
    out: Tensor
    # The arguments of the kernel; a layer changes a few of them.
    args: Arguments


class CpuAttention:
    """Paged attention for mixed batches. Not for several threads at once: it reuses its work buffers."""

    name = "cpu"

    def __init__(self, *, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, num_threads: int) -> None:
        self._group = num_heads // num_kv_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._block_size = block_size
        self._num_threads = num_threads
        self._scratch = np.empty(0, np.float32)
        self._out = torch.empty(0)

    @property
    def recordable(self) -> None:
        """Nothing: its plans are made anew each step."""
        return

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """What it lacks for this need."""
        return ([_MISSING] if _MISSING else []) + _CAPS.reasons_against(need)

    def kv_shape(self, spec: KVSpec) -> tuple[int, ...]:
        """Shape of the pool."""
        return kv_shape(spec)

    def plan(self, batch: AttnBatch) -> CpuPlan:
        """Cut the batch into tiles and lay out the arguments that all layers share."""
        tiles, limits_T = cut_tiles(batch, self._group), visible_lengths(batch)
        tables_RB = np.ascontiguousarray(batch.tables_RB, dtype=np.int32)
        slots_T = np.ascontiguousarray(batch.slots_T, dtype=np.int64)
        args, out = self._arguments(tiles, tables_RB, limits_T, slots_T)
        return CpuPlan(tiles=tiles, tables_RB=tables_RB, limits_T=limits_T, slots_T=slots_T, out=out, args=args)

    def attend(
        self,
        q_TNH: Tensor,
        k_TGH: Tensor,
        v_TGH: Tensor,
        kv: Tensor,
        plan: CpuPlan,
        layer: int,
        window: int | None = None,
    ) -> Tensor:
        """Write keys and values, then attend; the result is overwritten by the next call."""
        assert kernel is not None
        if k_TGH.stride() != v_TGH.stride() or k_TGH.stride(2) != 1 or q_TNH.stride(2) != 1:
            q_TNH, k_TGH, v_TGH = q_TNH.contiguous(), k_TGH.contiguous(), v_TGH.contiguous()
        block_stride, layer_stride, value_stride, key_stride, _, _ = kv.stride()
        args = plan.args.values
        args[kernel.Q : kernel.K_HEAD + 1] = (
            *(q_TNH.data_ptr(), q_TNH.stride(0), q_TNH.stride(1)),
            *(k_TGH.data_ptr(), v_TGH.data_ptr(), k_TGH.stride(0), k_TGH.stride(1)),
        )
        args[kernel.KV : kernel.KEY_STRIDE + 1] = (
            *(kv.data_ptr(), block_stride, layer * layer_stride, layer * layer_stride + value_stride, key_stride),
        )
        args[kernel.WINDOW] = _EVERYTHING if window is None else window
        args[kernel.NUM_WRITTEN] = 0
        kernel.attend.run(plan.args, self._num_threads)
        return plan.out

    def _arguments(
        self, tiles: np.ndarray, tables_RB: np.ndarray, limits_T: np.ndarray, slots_T: np.ndarray
    ) -> tuple[Arguments, Tensor]:
        """What is the same for all layers of a step, and where the results go."""
        assert kernel is not None
        assert team is not None
        num_tokens, head_dim = len(slots_T), self._head_dim
        num_heads = self._group * self._num_kv_heads
        if self._out.shape[0] < num_tokens:
            self._out = torch.empty(num_tokens, num_heads, head_dim)
        # The last page is scored whole.
        max_keys = -(-int(limits_T.max()) // self._block_size) * self._block_size
        # Whole rows of the pool are read best in one go, as long as every thread gets enough to do.
        heads_at_once = self._num_kv_heads if len(tiles) >= 4 * self._num_threads else 1
        size = heads_at_once * kernel.scratch_floats(max_keys, head_dim)
        if self._scratch.size < size * self._num_threads:
            self._scratch = np.zeros(2 * size * self._num_threads, np.float32)
        num_writes = -(-num_tokens // kernel.TOKENS_PER_WRITE)
        values = {
            team.NUM_TASKS: num_writes + len(tiles) * self._num_kv_heads // heads_at_once,
            kernel.NUM_TOKENS: num_tokens,
            kernel.SLOTS: slots_T.ctypes.data,
            kernel.HEAD_DIM: head_dim,
            kernel.GROUP: self._group,
            kernel.NUM_KV_HEADS: self._num_kv_heads,
            kernel.HEADS_AT_ONCE: heads_at_once,
            kernel.BLOCK_SIZE: self._block_size,
            kernel.TILES: tiles.ctypes.data,
            kernel.TABLES: tables_RB.ctypes.data,
            kernel.TABLE_STRIDE: tables_RB.shape[1],
            kernel.LIMITS: limits_T.ctypes.data,
            kernel.OUT: self._out.data_ptr(),
            kernel.OUT_TOKEN: num_heads * head_dim,
            kernel.OUT_HEAD: head_dim,
            kernel.SCRATCH: self._scratch.ctypes.data,
            kernel.SCRATCH_STRIDE: size,
            kernel.SCALE: round(2**32 / math.sqrt(head_dim)),
            kernel.NUM_WRITES: num_writes,
        }
        args = team.Arguments(kernel.NUM_ARGUMENTS)
        for place, value in values.items():
            args.values[place] = value
        return args, self._out[:num_tokens]
