"""Attention on a GPU by Triton kernels over pages. Needs Triton; without a GPU it says why it cannot serve.

Rows that feed one token go to the decode kernel, split over their context, and through `combine`; rows that feed more
(prompts, chunks, trees of drafts) go to the extend kernel. So a row's result does not depend on the rows beside it.

T fed tokens, N query heads, G key-value heads, H head dim, R rows, D decode rows, C parts of a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_worker.attention.base import AttentionCaps, AttentionNeed, AttnBatch, KVSpec, kv_shape
from octavo_worker.kernels import gpu
from octavo_worker.kernels.triton.combine import combine
from octavo_worker.kernels.triton.decode_attention import decode_attention, num_splits, serves
from octavo_worker.kernels.triton.extend_attention import (
    MAX_TREE_NODES,
    ExtendPlan,
    extend_attention,
    max_queries,
)
from octavo_worker.kernels.triton.pages import KVFormat, PagedKV, region_bytes, view_pages
from octavo_worker.kernels.triton.write_kv import write_kv

_DTYPES = frozenset({"float32", "float16", "bfloat16"})
_MAX_HEAD_DIM = 256
# A slot below 0: nothing is written.
_NOWHERE = -1
_NO_TREES: Sequence[tuple[int, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """Tensors of one step on the device; the same for all layers."""

    slots_T: Tensor  # int64 [T]; below 0 writes nothing
    limits_T: Tensor  # int32 [T]
    tables_RB: Tensor  # int32 [R, B]
    entries_D2: Tensor  # int32 [D, 2]: row, fed token
    num_parts: int
    extend: ExtendPlan | None

    def refill(self, batch: AttnBatch) -> None:
        """Take over a batch of rows of one token, at most as many; rows beyond it become padding.

        Addresses stay, as a recorded graph needs. Row i is fed token i, so the entries are right already.
        """
        assert self.extend is None, "only rows of one token are recorded"
        num_rows, num_blocks = batch.tables_RB.shape
        slots_T = np.full(self.slots_T.shape[0], _NOWHERE, np.int64)
        slots_T[:num_rows] = batch.slots_T
        limits_T = np.zeros(self.limits_T.shape[0], np.int32)
        limits_T[:num_rows] = batch.starts_R + 1
        self.slots_T.copy_(torch.from_numpy(slots_T))
        self.limits_T.copy_(torch.from_numpy(limits_T))
        tables_RB = np.ascontiguousarray(batch.tables_RB, dtype=np.int32)
        self.tables_RB[:num_rows, :num_blocks].copy_(torch.from_numpy(tables_RB))


class TritonAttention:
    """Paged attention for mixed batches."""

    name = "triton_paged"

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        kv_format: KVFormat = KVFormat.PLAIN,
    ) -> None:
        """Tiles of queries are sized for `dtype`; those of float32 serve the others too, only less well."""
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._block_size = block_size
        self._dtype = dtype
        self._format = kv_format
        self._device = gpu.torch_device()
        self._pages: tuple[int, PagedKV] | None = None

    @property
    def recordable(self) -> TritonAttention:
        """Itself: what a decode step launches depends on the numbers of rows and parts alone."""
        return self

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """What it or this machine lacks for this need."""
        caps = AttentionCaps(devices=frozenset({"cuda"}), dtypes=_DTYPES, sliding_window=True)
        reasons = caps.reasons_against(need)
        if need.head_dim > _MAX_HEAD_DIM:
            reasons.append(f"head dim {need.head_dim} is above {_MAX_HEAD_DIM}")
        if need.num_heads % need.num_kv_heads:
            reasons.append(f"{need.num_heads} query heads do not share {need.num_kv_heads} key-value heads")
        needed = self._format.min_capability
        if needed > gpu.LEAST_CAPABILITY:
            return reasons + gpu.reasons_against(needed, who=f"keys and values in {self._format.value} need")
        return reasons + gpu.reasons_against()

    def kv_shape(self, spec: KVSpec) -> tuple[int, ...]:
        """Shape of the pool; of bytes, a region a block, for formats with codes of a byte."""
        if self._format is KVFormat.PLAIN:
            return kv_shape(spec)
        size = region_bytes(
            self._format,
            num_layers=spec.num_layers,
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
        )
        return (spec.num_blocks, size)

    def kv_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Dtype of the pool's elements for a model that computes in `dtype`."""
        return dtype if self._format is KVFormat.PLAIN else torch.uint8

    def plan(self, batch: AttnBatch, trees: Sequence[tuple[int, ...]] = _NO_TREES) -> TritonPlan:
        """Sort the rows by kernel and move what they need to the device.

        `trees` has one entry a row, if given: the parents of the nodes that end the row's fed tokens, -1 for those that
        hang on the last token before them.
        """
        counts_R, starts_R = batch.num_tokens_R.astype(np.int64), batch.starts_R.astype(np.int64)
        first_R = np.cumsum(counts_R) - counts_R
        within_T = np.arange(int(counts_R.sum())) - np.repeat(first_R, counts_R)
        limits_T = (np.repeat(starts_R, counts_R) + within_T + 1).astype(np.int32)
        decoded = np.flatnonzero(counts_R == 1) if self._decodes_apart() else np.empty(0, np.int64)
        entries_D2 = np.stack([decoded, first_R[decoded]], axis=1).astype(np.int32)
        longest = int(limits_T[first_R[decoded]].max()) if len(decoded) else 0
        tables_RB = self._put(np.ascontiguousarray(batch.tables_RB, dtype=np.int32))
        extend = self._plan_extend(counts_R, starts_R, first_R, limits_T, trees, tables_RB)
        return TritonPlan(
            slots_T=self._put(batch.slots_T),
            limits_T=self._put(limits_T) if extend is None else extend.limits_T,
            tables_RB=tables_RB,
            entries_D2=self._put(entries_D2),
            num_parts=num_splits(longest),
            extend=extend,
        )

    def num_parts(self, batch: AttnBatch) -> int | None:
        """Parts of the longest context, for rows of one token each that the decode kernel takes; else None."""
        if not self._decodes_apart() or (batch.num_tokens_R != 1).any():
            return None
        return num_splits(int(batch.starts_R.max()) + 1)

    def padded_plan(self, *, num_rows: int, num_blocks: int, num_parts: int) -> TritonPlan:
        """A plan of decode rows that see nothing and write nothing, for a graph that others are copied into."""
        numbers = torch.arange(num_rows, dtype=torch.int32, device=self._device)
        return TritonPlan(
            slots_T=torch.full((num_rows,), _NOWHERE, dtype=torch.int64, device=self._device),
            limits_T=torch.zeros(num_rows, dtype=torch.int32, device=self._device),
            tables_RB=torch.zeros(num_rows, num_blocks, dtype=torch.int32, device=self._device),
            entries_D2=torch.stack((numbers, numbers), dim=1),
            num_parts=num_parts,
            extend=None,
        )

    def attend(
        self,
        q_TNH: Tensor,
        k_TGH: Tensor,
        v_TGH: Tensor,
        kv: Tensor,
        plan: TritonPlan,
        layer: int,
        window: int | None = None,
    ) -> Tensor:
        """Write keys and values, then attend; a new tensor."""
        pages = self._view(kv)
        write_kv(k_TGH, v_TGH, plan.slots_T, pages, layer)
        out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
        if plan.extend is not None:
            extend_attention(q_TNH, pages, layer, plan.extend, out_TNH, window=window)
        if plan.entries_D2.shape[0]:
            self._decode(q_TNH, pages, plan, layer, out_TNH, window)
        return out_TNH

    def _decode(
        self, q_TNH: Tensor, pages: PagedKV, plan: TritonPlan, layer: int, out_TNH: Tensor, window: int | None
    ) -> None:
        num_rows, num_parts = plan.entries_D2.shape[0], plan.num_parts
        shape = (num_rows, self._num_heads, num_parts)
        # Taken anew each time: a captured graph keeps its own.
        lse_DNC = torch.empty(shape, device=q_TNH.device)
        parts_DNCH = torch.empty((*shape, self._head_dim), device=q_TNH.device)
        decode_attention(
            q_TNH,
            pages,
            layer,
            entries_D2=plan.entries_D2,
            tables_RB=plan.tables_RB,
            limits_T=plan.limits_T,
            out_DNCH=parts_DNCH,
            lse_DNC=lse_DNC,
            window=window,
        )
        combine(
            parts_DNCH,
            lse_DNC,
            entries_D2=plan.entries_D2,
            limits_T=plan.limits_T,
            out_TNH=out_TNH,
            window=window,
        )

    def _plan_extend(
        self,
        counts_R: np.ndarray,
        starts_R: np.ndarray,
        first_R: np.ndarray,
        limits_T: np.ndarray,
        trees: Sequence[tuple[int, ...]],
        tables_RB: Tensor,
    ) -> ExtendPlan | None:
        rows = np.flatnonzero(counts_R > (1 if self._decodes_apart() else 0))
        if not len(rows):
            return None
        masks = _tree_masks(counts_R, starts_R, first_R, limits_T, trees) if any(trees) else None
        group = self._num_heads // self._num_kv_heads
        pairs = counts_R[rows] * group
        queries = max_queries(self._head_dim, self._dtype, int(pairs.max()))
        num_tiles = -(-pairs // queries)
        of = np.repeat(rows, num_tiles)
        first_pair = (np.arange(len(of)) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)) * queries
        num_pairs = np.minimum(queries, counts_R[of] * group - first_pair)
        last_token = (first_pair + num_pairs - 1) // group
        ends = starts_R[of] + last_token + 1
        # The longest first: what begins last should end soon.
        order = np.argsort(-ends, kind="stable")
        tiles_J5 = np.stack([of, first_R[of], first_pair, num_pairs, ends], axis=1)[order].astype(np.int32)
        return ExtendPlan(
            tiles_J5=self._put(tiles_J5),
            tables_RB=tables_RB,
            limits_T=self._put(limits_T),
            bits_T=None if masks is None else self._put(masks[0]),
            depths_T=None if masks is None else self._put(masks[1]),
            tree_firsts_R=None if masks is None else self._put(masks[2]),
            queries=queries,
        )

    def _decodes_apart(self) -> bool:
        """Whether rows of one token have a kernel of their own: not if a group of heads is too large for its tile."""
        return serves(self._num_heads // self._num_kv_heads, self._head_dim, self._dtype)

    def _view(self, kv: Tensor) -> PagedKV:
        """Views into the pool, made once a pool."""
        if self._pages is None or self._pages[0] != kv.data_ptr():
            size = self._num_kv_heads * self._block_size * 2
            num_layers = kv.shape[1] if self._format is KVFormat.PLAIN else kv.shape[1] // (size * (self._head_dim + 4))
            pages = view_pages(
                kv,
                self._format,
                num_layers=num_layers,
                block_size=self._block_size,
                num_kv_heads=self._num_kv_heads,
                head_dim=self._head_dim,
            )
            self._pages = (kv.data_ptr(), pages)
        return self._pages[1]

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _tree_masks(
    counts_R: np.ndarray,
    starts_R: np.ndarray,
    first_R: np.ndarray,
    limits_T: np.ndarray,
    trees: Sequence[tuple[int, ...]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bits, depths, first slots) of the rows' trees; sets the limits of their nodes."""
    bits_T = np.zeros(len(limits_T), np.int64)
    depths_T = np.zeros(len(limits_T), np.int32)
    tree_firsts_R = (starts_R + counts_R).astype(np.int32)
    for row, parents in enumerate(trees):
        if len(parents) > MAX_TREE_NODES:
            raise ValueError(f"a tree has {len(parents)} nodes, {MAX_TREE_NODES} are the most")
        tree_firsts_R[row] -= len(parents)
        base = int(first_R[row] + counts_R[row]) - len(parents)
        for node, parent in enumerate(parents):
            ancestors = bits_T[base + parent] if parent >= 0 else 0
            bits_T[base + node] = ancestors | (1 << node)
            depths_T[base + node] = depths_T[base + parent] + 1 if parent >= 0 else 1
        limits_T[base : base + len(parents)] = tree_firsts_R[row]
    return bits_T, depths_T, tree_firsts_R
