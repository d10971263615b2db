"""Attention the obvious way: gather a row's keys and values, mask, softmax. The judge of the fast backends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_worker.attention.base import AttentionCaps, AttentionNeed, AttnBatch, KVSpec, kv_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan:
    """One entry a row: its table, first position and slice of the fed tokens."""

    rows: list[tuple[Tensor, int, slice]]
    blocks_T: Tensor
    offsets_T: Tensor


class ReferenceAttention:
    """Plain torch, any dtype (float64 too), any device."""

    name = "reference"

    def __init__(self, *, block_size: int) -> None:
        self._block_size = block_size

    @property
    def recordable(self) -> None:
        """Nothing: its plans are made anew each step."""
        return

    def reasons_against(self, need: AttentionNeed) -> list[str]:
        """It serves everything."""
        return AttentionCaps(sliding_window=True).reasons_against(need)

    def kv_shape(self, spec: KVSpec) -> tuple[int, ...]:
        """Shape of the pool."""
        return kv_shape(spec)

    def plan(self, batch: AttnBatch) -> ReferencePlan:
        """Cut the batch into rows."""
        rows: list[tuple[Tensor, int, slice]] = []
        first = 0
        for table, start, count in zip(batch.tables_RB, batch.starts_R, batch.num_tokens_R, strict=True):
            num_blocks = -(-int(start + count) // self._block_size)
            rows.append(
                (torch.tensor(table[:num_blocks], dtype=torch.int64), int(start), slice(first, first + int(count)))
            )
            first += int(count)
        slots_T = torch.from_numpy(batch.slots_T)
        return ReferencePlan(rows=rows, blocks_T=slots_T // self._block_size, offsets_T=slots_T % self._block_size)

    def attend(
        self,
        q_TNH: Tensor,
        k_TGH: Tensor,
        v_TGH: Tensor,
        kv: Tensor,
        plan: ReferencePlan,
        layer: int,
        window: int | None = None,
    ) -> Tensor:
        """Write the fed tokens' keys and values, then attend row by row."""
        device = kv.device
        kv[plan.blocks_T, layer, 0, plan.offsets_T] = k_TGH
        kv[plan.blocks_T, layer, 1, plan.offsets_T] = v_TGH
        out_TNH = torch.empty_like(q_TNH)
        for table, start, tokens in plan.rows:
            q_TNH_row = q_TNH[tokens]
            num_tokens, num_heads, head_dim = q_TNH_row.shape
            num_keys = start + num_tokens
            k_SGH, v_SGH = (kv[table, layer, i].flatten(0, 1)[:num_keys] for i in (0, 1))
            repeats = num_heads // k_SGH.shape[1]
            k_SNH, v_SNH = (x.repeat_interleave(repeats, dim=1) for x in (k_SGH, v_SGH))
            scores_NTS = torch.einsum("tnh,snh->nts", q_TNH_row, k_SNH) / math.sqrt(head_dim)
            position_T = torch.arange(start, num_keys, device=device)
            key_S = torch.arange(num_keys, device=device)
            hidden_TS = key_S[None, :] > position_T[:, None]
            if window is not None:
                hidden_TS |= key_S[None, :] <= position_T[:, None] - window
            weights_NTS = scores_NTS.masked_fill(hidden_TS, -math.inf).softmax(dim=-1)
            out_TNH[tokens] = torch.einsum("nts,snh->tnh", weights_NTS, v_SNH)
        return out_TNH
