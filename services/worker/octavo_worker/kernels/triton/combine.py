"""Joins the parts that `decode_attention` made of a row: the online softmax over whole parts.

    M = max_c lse(c);   w(c) = 2^(lse(c) - M);   out = sum_c w(c) part(c) / sum_c w(c)

D decode rows, T fed tokens, N query heads, C parts of SPLIT keys, H head dim. `parts: float32 [D, N, C, H]`, `lse:
float32 [D, N, C]`, `out: [T, N, H]`, written at the rows' fed tokens. Only the parts that a row reached are read: what
lies in the others may be anything. A row that sees no key (padding of a captured batch) gives zeros.

Source: online softmax (arXiv 1805.02867), flash-decoding (Dao and others, 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.decode_attention import SPLIT_KEYS
from octavo_worker.kernels.triton.launch import FLOATS, Launch, power_of_two, require, require_tensor

# Parts that are read at once.
_PARTS = 16


# As in `decode_attention`: they differ from step to step.
@triton.jit(do_not_specialize=["lse_stride_row", "lse_stride_head"])
def _combine(
    parts_ptr, lse_ptr, entries_ptr, limits_ptr, out_ptr,
    parts_stride_row, parts_stride_head, lse_stride_row, lse_stride_head, out_stride_token, out_stride_head, window,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    token = tl.load(entries_ptr + 2 * row + 1).to(tl.int64)
    limit = tl.load(limits_ptr + token)
    first = tl.maximum(limit - window, 0) // SPLIT
    last = (limit + SPLIT - 1) // SPLIT
    h_H = tl.arange(0, HEAD_PAD)
    valid_H = h_H < HEAD_DIM
    parts_ptr += row * parts_stride_row + head * parts_stride_head
    lse_ptr += row * lse_stride_row + head * lse_stride_head
    result_H = tl.zeros([HEAD_PAD], dtype=tl.float32)
    peak = -float("inf")
    total = 0.0
    for base in range(first, last, PARTS):
        c_C = base + tl.arange(0, PARTS)
        reached_C = c_C < last
        lse_C = tl.load(lse_ptr + c_C, mask=reached_C, other=float("-inf"))
        new_peak = tl.maximum(peak, tl.max(lse_C, axis=0))
        weight_C = tl.exp2(lse_C - new_peak)
        kept = tl.exp2(peak - new_peak)
        part_CH = tl.load(
            parts_ptr + c_C[:, None] * HEAD_DIM + h_H[None, :], mask=reached_C[:, None] & valid_H[None, :], other=0.0
        )
        result_H = result_H * kept + tl.sum(part_CH * weight_C[:, None], axis=0)
        total = total * kept + tl.sum(weight_C, axis=0)
        peak = new_peak
    result_H = result_H / tl.where(total > 0.0, total, 1.0)
    out_at = token * out_stride_token + head * out_stride_head
    tl.store(out_ptr + out_at + h_H, result_H.to(out_ptr.dtype.element_ty), mask=valid_H)


def combine_launch(
    parts_DNCH: Tensor,
    lse_DNC: Tensor,
    *,
    entries_D2: Tensor,
    limits_T: Tensor,
    out_TNH: Tensor,
    window: int | None = None,
) -> Launch:
    """The launch that joins the parts of some rows. Raises ValueError for arguments that do not fit each other."""
    num_rows, num_heads, num_parts, head_dim = parts_DNCH.shape
    device = parts_DNCH.device
    require_tensor("parts", parts_DNCH, (num_rows, num_heads, num_parts, head_dim), (torch.float32,), device=device)
    require_tensor("lse", lse_DNC, (num_rows, num_heads, num_parts), (torch.float32,), device=device)
    require_tensor("entries", entries_D2, (num_rows, 2), (torch.int32,), device=device)
    require_tensor("out", out_TNH, (None, num_heads, head_dim), FLOATS, device=device)
    require_tensor("limits", limits_T, (out_TNH.shape[0],), (torch.int32,), device=device)
    require(entries_D2.is_contiguous() and parts_DNCH.stride(2) == head_dim, "entries and parts must be dense")
    require(window is None or window > 0, "a window holds at least one key")
    return Launch(
        kernel=_combine,
        grid=(num_rows, num_heads),
        args={
            "parts_ptr": parts_DNCH,
            "lse_ptr": lse_DNC,
            "entries_ptr": entries_D2,
            "limits_ptr": limits_T,
            "out_ptr": out_TNH,
            "parts_stride_row": parts_DNCH.stride(0),
            "parts_stride_head": parts_DNCH.stride(1),
            "lse_stride_row": lse_DNC.stride(0),
            "lse_stride_head": lse_DNC.stride(1),
            "out_stride_token": out_TNH.stride(0),
            "out_stride_head": out_TNH.stride(1),
            "window": 2**30 if window is None else window,
        },
        constants={
            "HEAD_DIM": head_dim,
            "HEAD_PAD": power_of_two(head_dim),
            "SPLIT": SPLIT_KEYS,
            "PARTS": _PARTS,
        },
        num_warps=4,
    )


def combine(
    parts_DNCH: Tensor,
    lse_DNC: Tensor,
    *,
    entries_D2: Tensor,
    limits_T: Tensor,
    out_TNH: Tensor,
    window: int | None = None,
) -> None:
    """Join the parts of some rows and write them at the rows' fed tokens."""
    combine_launch(parts_DNCH, lse_DNC, entries_D2=entries_D2, limits_T=limits_T, out_TNH=out_TNH, window=window).run()
