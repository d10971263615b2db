"""Attention of rows that feed one token each, split over the context: every program takes some keys of one head.

    out(d, n, c, :) = softmax over s in part c of (q(d, n) . k(s, g) / sqrt(H)) v(s, g)       g = n * G / N
    lse(d, n, c)    = log2 of the sum of 2^(scores), so that the parts can be joined (`combine.py`)

D decode rows, T fed tokens, R rows of the tables, N query heads, G key-value heads, H head dim, C parts of SPLIT keys.
`q: [T, N, H]`, `entries: int32 [D, 2]` (row of the tables, fed token), `tables: int32 [R, B]`, `limits: int32 [T]`: a
token sees the keys [max(0, limit - window), limit). Partial results `[D, N, C, H]` and `[D, N, C]` in float32.
Parts are cut at multiples of SPLIT keys whatever the batch holds, so a row's result depends on nothing but the row.
All query heads of a group are one tile, so that a key is read once.

Source: PagedAttention (arXiv 2309.06180); the split is flash-decoding (Dao and others, 2023).
"""

# In a kernel Triton makes constants of literals, which the type checker cannot know.
# pyright: reportArgumentType=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import (
    FLOATS,
    LOG2_E,
    Launch,
    dot_precision,
    power_of_two,
    require,
    require_tensor,
)
from octavo_worker.kernels.triton.pages import PagedKV
from octavo_worker.kernels.triton.tiles import MAX_REGISTERS, MIN_QUERIES, fold_tile, most_queries, tile_shape

SPLIT_KEYS = 256


# These differ from step to step; a kernel of its own for each kind of number would be compiled while requests wait.
@triton.jit(do_not_specialize=["table_stride", "lse_stride_row", "lse_stride_head"])
def _decode_attention(
    q_ptr, entries_ptr, tables_ptr, limits_ptr, codes_ptr, scales_ptr, out_ptr, lse_ptr,
    q_stride_token, q_stride_head, table_stride, stride_block, stride_slot, stride_head, key_offset, value_offset,
    scale_stride_block, scale_stride_slot, scale_stride_head, scale_key_offset, scale_value_offset,
    out_stride_row, out_stride_head, lse_stride_row, lse_stride_head, window, scale_log2,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SPLIT: tl.constexpr, KEYS: tl.constexpr,
    QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    table_row = tl.load(entries_ptr + 2 * row).to(tl.int64)
    token = tl.load(entries_ptr + 2 * row + 1).to(tl.int64)
    limit = tl.load(limits_ptr + token)
    low = tl.maximum(limit - window, 0)
    first = tl.maximum(part * SPLIT, low // KEYS * KEYS)
    last = tl.minimum((part + 1) * SPLIT, limit)
    if first < last:
        m_M = tl.arange(0, QUERIES)
        h_H = tl.arange(0, HEAD_PAD)
        valid_MH = (m_M < GROUP)[:, None] & (h_H < HEAD_DIM)[None, :]
        n_M = head * GROUP + m_M
        q_MH = tl.load(
            q_ptr + token * q_stride_token + n_M[:, None] * q_stride_head + h_H[None, :], mask=valid_MH, other=0.0
        )
        result_MH = tl.zeros([QUERIES, HEAD_PAD], dtype=tl.float32)
        max_M = tl.full([QUERIES], float("-inf"), dtype=tl.float32)
        sum_M = tl.zeros([QUERIES], dtype=tl.float32)
        table_ptr = tables_ptr + table_row * table_stride
        for tile in range(first, last, KEYS):
            s_S = tile + tl.arange(0, KEYS)
            readable_S = (s_S >= low) & (s_S < last)
            result_MH, max_M, sum_M = fold_tile(
                q_MH, result_MH, max_M, sum_M, s_S, readable_S, readable_S[None, :],
                codes_ptr, scales_ptr, table_ptr, stride_block, stride_slot,
                key_offset + head * stride_head, value_offset + head * stride_head,
                scale_stride_block, scale_stride_slot,
                scale_key_offset + head * scale_stride_head, scale_value_offset + head * scale_stride_head, scale_log2,
                HEAD_DIM, HEAD_PAD, BLOCK_SIZE, True, QUANTIZED, PRECISION,
            )  # fmt: skip
        out_at_M = row * out_stride_row + n_M * out_stride_head + part * HEAD_DIM
        tl.store(out_ptr + out_at_M[:, None] + h_H[None, :], result_MH / sum_M[:, None], mask=valid_MH)
        tl.store(
            lse_ptr + row * lse_stride_row + n_M * lse_stride_head + part, max_M + tl.log2(sum_M), mask=m_M < GROUP
        )


def num_splits(max_keys: int) -> int:
    """Parts that a context of so many keys is cut into."""
    return -(-max_keys // SPLIT_KEYS)


def serves(group: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether a group of so many query heads fits a tile; larger ones go to the extend kernel."""
    return group <= most_queries(head_dim, dtype)


def decode_attention_launch(
    q_TNH: Tensor,
    kv: PagedKV,
    layer: int,
    *,
    entries_D2: Tensor,
    tables_RB: Tensor,
    limits_T: Tensor,
    out_DNCH: Tensor,
    lse_DNC: Tensor,
    window: int | None = None,
) -> Launch:
    """The launch that fills the parts of some rows. Parts that a row does not reach are left as they are.

    The number of parts is that of `out_DNCH`; it must cover the longest row. Raises ValueError.
    """
    codes, scales = kv.codes, kv.scales
    num_layers, _, block_size, num_kv_heads, head_dim = codes.shape[1:]
    num_tokens, num_heads = q_TNH.shape[:2]
    num_rows, device = entries_D2.shape[0], q_TNH.device
    num_parts = out_DNCH.shape[2]
    require_tensor("q", q_TNH, (num_tokens, num_heads, head_dim), FLOATS, device=device)
    require_tensor("entries", entries_D2, (num_rows, 2), (torch.int32,), device=device)
    require_tensor("tables", tables_RB, (None, None), (torch.int32,), device=device)
    require_tensor("limits", limits_T, (num_tokens,), (torch.int32,), device=device)
    require_tensor("out", out_DNCH, (num_rows, num_heads, num_parts, head_dim), (torch.float32,), device=device)
    require_tensor("lse", lse_DNC, (num_rows, num_heads, num_parts), (torch.float32,), device=device)
    require(entries_D2.is_contiguous() and out_DNCH.stride(2) == head_dim, "entries and parts must be dense")
    require(num_heads % num_kv_heads == 0, f"{num_heads} query heads do not share {num_kv_heads} key-value heads")
    group = num_heads // num_kv_heads
    require(serves(group, head_dim, q_TNH.dtype), f"a group of {group} heads is too large for one tile")
    require(scales is not None or codes.dtype == q_TNH.dtype, f"q is {q_TNH.dtype}, the pool {codes.dtype}")
    require(0 <= layer < num_layers, f"layer {layer} is not one of {num_layers}")
    require(codes.device == device, f"the pool is on {codes.device}, q is on {device}")
    require(window is None or window > 0, "a window holds at least one key")
    head_pad = max(power_of_two(head_dim), 16)
    keys, num_warps, num_stages = tile_shape(head_dim, q_TNH.dtype)
    strides = (0, 0, 0, 0, 0) if scales is None else scales.stride()
    return Launch(
        kernel=_decode_attention,
        grid=(num_rows, num_kv_heads, num_parts),
        args={
            "q_ptr": q_TNH,
            "entries_ptr": entries_D2,
            "tables_ptr": tables_RB,
            "limits_ptr": limits_T,
            "codes_ptr": kv.raw_codes,
            "scales_ptr": lse_DNC if scales is None else scales,
            "out_ptr": out_DNCH,
            "lse_ptr": lse_DNC,
            "q_stride_token": q_TNH.stride(0),
            "q_stride_head": q_TNH.stride(1),
            "table_stride": tables_RB.stride(0),
            "stride_block": codes.stride(0),
            "stride_slot": codes.stride(3),
            "stride_head": codes.stride(4),
            "key_offset": layer * codes.stride(1),
            "value_offset": layer * codes.stride(1) + codes.stride(2),
            "scale_stride_block": strides[0],
            "scale_stride_slot": strides[3],
            "scale_stride_head": strides[4],
            "scale_key_offset": layer * strides[1],
            "scale_value_offset": layer * strides[1] + strides[2],
            "out_stride_row": out_DNCH.stride(0),
            "out_stride_head": out_DNCH.stride(1),
            "lse_stride_row": lse_DNC.stride(0),
            "lse_stride_head": lse_DNC.stride(1),
            "window": 2**30 if window is None else window,
            "scale_log2": LOG2_E / math.sqrt(head_dim),
        },
        constants={
            "GROUP": group,
            "QUERIES": max(power_of_two(group), MIN_QUERIES),
            "HEAD_DIM": head_dim,
            "HEAD_PAD": head_pad,
            "BLOCK_SIZE": block_size,
            "SPLIT": SPLIT_KEYS,
            "KEYS": keys,
            "QUANTIZED": scales is not None,
            "PRECISION": dot_precision(q_TNH.dtype),
        },
        num_warps=num_warps,
        num_stages=num_stages,
        max_registers=MAX_REGISTERS,
    )


def decode_attention(
    q_TNH: Tensor,
    kv: PagedKV,
    layer: int,
    *,
    entries_D2: Tensor,
    tables_RB: Tensor,
    limits_T: Tensor,
    out_DNCH: Tensor,
    lse_DNC: Tensor,
    window: int | None = None,
) -> None:
    """Attend for rows of one token, part by part; `combine` joins the parts."""
    decode_attention_launch(
        q_TNH,
        kv,
        layer,
        entries_D2=entries_D2,
        tables_RB=tables_RB,
        limits_T=limits_T,
        out_DNCH=out_DNCH,
        lse_DNC=lse_DNC,
        window=window,
    ).run()
