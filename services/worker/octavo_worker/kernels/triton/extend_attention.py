"""Attention of rows that feed several tokens: prompts, chunks and drafts in any mix, causal or by a tree.

    out(t, n, :) = softmax over the keys that t sees of (q(t, n) . k(s, g) / sqrt(H)) v(s, g)       g = n * G / N

T fed tokens, R rows, N query heads, G key-value heads, H head dim, J tiles. `q, out: [T, N, H]`, `tables: int32 [R,
B]`, `tiles: int32 [J, 5]`: row, first fed token, first pair, number of pairs, end of the keys. A pair is a (token,
query head of a group); a tile takes up to QUERIES neighbouring pairs of one row for one key-value head, so that a key
is read once for all of them. Token t sees the keys

    [max(0, limit(t) + depth(t) - window), limit(t))               causal: limit = position + 1, depth = 0
    and tree_first(row) + j for every bit j of bits(t)             a tree of drafts: limit = tree_first

`limits: int32 [T]`, `bits: int64 [T]`, `depths: int32 [T]`, `tree_firsts: int32 [R]`. Node j of a tree lies in slot
tree_first + j; its bits are its ancestors and itself (so at most 63 nodes), its depth is their number. A node sees all
its ancestors, whatever the window.

Source: FlashAttention-2 (arXiv 2307.08691), PagedAttention (arXiv 2309.06180), tree masks of SpecInfer (2305.09781).
"""

# In a kernel Triton makes constants of literals, which the type checker cannot know.
# pyright: reportArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass

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

TILE_FIELDS = 5
MAX_TREE_NODES = 63


# The width of the tables differs from step to step; it must not be a reason to compile again.
@triton.jit(do_not_specialize=["table_stride"])
def _extend_attention(
    q_ptr, out_ptr, tiles_ptr, tables_ptr, limits_ptr, depths_ptr, bits_ptr, tree_firsts_ptr, codes_ptr, scales_ptr,
    q_stride_token, q_stride_head, out_stride_token, out_stride_head, table_stride,
    stride_block, stride_slot, stride_head, key_offset, value_offset,
    scale_stride_block, scale_stride_slot, scale_stride_head, scale_key_offset, scale_value_offset,
    window, scale_log2,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
    QUANTIZED: tl.constexpr, HAS_TREE: tl.constexpr, HAS_WINDOW: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile_ptr = tiles_ptr + tl.program_id(0) * 5
    head = tl.program_id(1).to(tl.int64)
    row = tl.load(tile_ptr).to(tl.int64)
    first_token = tl.load(tile_ptr + 1).to(tl.int64)
    first_pair = tl.load(tile_ptr + 2)
    num_pairs = tl.load(tile_ptr + 3)
    last_key = tl.load(tile_ptr + 4)
    m_M = tl.arange(0, QUERIES)
    h_H = tl.arange(0, HEAD_PAD)
    real_M = m_M < num_pairs
    pair_M = first_pair + m_M
    token_M = first_token + pair_M // GROUP
    n_M = head * GROUP + pair_M % GROUP
    valid_MH = real_M[:, None] & (h_H < HEAD_DIM)[None, :]
    q_MH = tl.load(
        q_ptr + (token_M * q_stride_token + n_M * q_stride_head)[:, None] + h_H[None, :], mask=valid_MH, other=0.0
    )
    # Lanes beyond the tile see nothing.
    limit_M = tl.load(limits_ptr + token_M, mask=real_M, other=0)
    if HAS_TREE:
        bits_M = tl.load(bits_ptr + token_M, mask=real_M, other=0)
        tree_first = tl.load(tree_firsts_ptr + row)
    else:
        bits_M = tl.zeros([QUERIES], dtype=tl.int64)
        tree_first = 0
    low_M = tl.zeros([QUERIES], dtype=tl.int32)
    first_key = 0
    if HAS_WINDOW:
        low_M = limit_M - window
        if HAS_TREE:
            low_M += tl.load(depths_ptr + token_M, mask=real_M, other=0)
        first_key = tl.maximum(tl.min(tl.where(real_M, low_M, 2147483647), axis=0), 0)
        if HAS_TREE:
            first_key = tl.minimum(first_key, tree_first)
    result_MH = tl.zeros([QUERIES, HEAD_PAD], dtype=tl.float32)
    max_M = tl.full([QUERIES], float("-inf"), dtype=tl.float32)
    sum_M = tl.zeros([QUERIES], dtype=tl.float32)
    table_ptr = tables_ptr + row * table_stride
    key_at, value_at = key_offset + head * stride_head, value_offset + head * stride_head
    scale_key_at = scale_key_offset + head * scale_stride_head
    scale_value_at = scale_value_offset + head * scale_stride_head
    # Keys that every query of the tile sees need no mask. The first tile of keys begins at a multiple of KEYS, so that
    # a row's sums are cut alike however its prompt is cut.
    start = first_key // KEYS * KEYS
    if HAS_WINDOW:
        shared = start
    else:
        shared = tl.min(tl.where(real_M, limit_M, 2147483647), axis=0) // KEYS * KEYS
        for tile in range(start, shared, KEYS):
            s_S = tile + tl.arange(0, KEYS)
            result_MH, max_M, sum_M = fold_tile(
                q_MH, result_MH, max_M, sum_M, s_S, s_S >= 0, s_S[None, :] >= 0,
                codes_ptr, scales_ptr, table_ptr, stride_block, stride_slot, key_at, value_at,
                scale_stride_block, scale_stride_slot, scale_key_at, scale_value_at, scale_log2,
                HEAD_DIM, HEAD_PAD, BLOCK_SIZE, False, QUANTIZED, PRECISION,
            )  # fmt: skip
    for tile in range(shared, last_key, KEYS):
        s_S = tile + tl.arange(0, KEYS)
        visible_MS = (s_S[None, :] < limit_M[:, None]) & (s_S[None, :] >= low_M[:, None])
        if HAS_TREE:
            node_S = s_S - tree_first
            in_tree_S = (node_S >= 0) & (node_S < 63)
            node_S = tl.where(in_tree_S, node_S, 0).to(tl.int64)
            visible_MS = visible_MS | (((bits_M[:, None] >> node_S[None, :]) & 1) != 0) & in_tree_S[None, :]
        result_MH, max_M, sum_M = fold_tile(
            q_MH, result_MH, max_M, sum_M, s_S, (s_S >= first_key) & (s_S < last_key), visible_MS,
            codes_ptr, scales_ptr, table_ptr, stride_block, stride_slot, key_at, value_at,
            scale_stride_block, scale_stride_slot, scale_key_at, scale_value_at, scale_log2,
            HEAD_DIM, HEAD_PAD, BLOCK_SIZE, True, QUANTIZED, PRECISION,
        )  # fmt: skip
    # Only lanes beyond the tile have a sum of 0.
    result_MH = result_MH / tl.where(sum_M > 0.0, sum_M, 1.0)[:, None]
    out_at_M = token_M * out_stride_token + n_M * out_stride_head
    tl.store(out_ptr + out_at_M[:, None] + h_H[None, :], result_MH.to(out_ptr.dtype.element_ty), mask=valid_MH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendPlan:
    """What rows of several tokens see, on the device. The same for all layers of a step."""

    tiles_J5: Tensor
    tables_RB: Tensor
    limits_T: Tensor
    # All three where some row has a tree.
    bits_T: Tensor | None = None
    depths_T: Tensor | None = None
    tree_firsts_R: Tensor | None = None
    # Pairs that a tile may hold.
    queries: int


def max_queries(head_dim: int, dtype: torch.dtype, max_pairs: int) -> int:
    """Pairs of a tile. Small rows take small tiles: what lies beyond a tile's pairs is computed for nothing."""
    return min(max(power_of_two(max_pairs), MIN_QUERIES), most_queries(head_dim, dtype))


def extend_attention_launch(
    q_TNH: Tensor, kv: PagedKV, layer: int, plan: ExtendPlan, out_TNH: Tensor, *, window: int | None = None
) -> Launch:
    """The launch that fills the results of the plan's rows; other tokens' are left as they are. Raises ValueError."""
    codes, scales = kv.codes, kv.scales
    num_layers, _, block_size, num_kv_heads, head_dim = codes.shape[1:]
    num_tokens, num_heads = q_TNH.shape[:2]
    device = q_TNH.device
    require_tensor("q", q_TNH, (num_tokens, num_heads, head_dim), FLOATS, device=device)
    require_tensor("out", out_TNH, (num_tokens, num_heads, head_dim), (q_TNH.dtype,), device=device)
    require_tensor("tiles", plan.tiles_J5, (None, TILE_FIELDS), (torch.int32,), device=device)
    require_tensor("tables", plan.tables_RB, (None, None), (torch.int32,), device=device)
    require_tensor("limits", plan.limits_T, (num_tokens,), (torch.int32,), device=device)
    if plan.bits_T is not None:
        num_rows = plan.tables_RB.shape[0]
        require(plan.depths_T is not None and plan.tree_firsts_R is not None, "a tree needs depths and where it begins")
        assert plan.depths_T is not None
        assert plan.tree_firsts_R is not None
        require_tensor("depths", plan.depths_T, (num_tokens,), (torch.int32,), device=device)
        require_tensor("bits", plan.bits_T, (num_tokens,), (torch.int64,), device=device)
        require_tensor("tree_firsts", plan.tree_firsts_R, (num_rows,), (torch.int32,), device=device)
    require(window is None or window > 0, "a window holds at least one key")
    require(plan.tiles_J5.is_contiguous(), "tiles must be dense")
    require(num_heads % num_kv_heads == 0, f"{num_heads} query heads do not share {num_kv_heads} key-value heads")
    require(scales is not None or codes.dtype == q_TNH.dtype, f"q is {q_TNH.dtype}, the pool {codes.dtype}")
    require(0 <= layer < num_layers, f"layer {layer} is not one of {num_layers}")
    require(codes.device == device, f"the pool is on {codes.device}, q is on {device}")
    keys, num_warps, num_stages = tile_shape(head_dim, q_TNH.dtype)
    strides = (0, 0, 0, 0, 0) if scales is None else scales.stride()
    return Launch(
        kernel=_extend_attention,
        grid=(plan.tiles_J5.shape[0], num_kv_heads),
        args={
            "q_ptr": q_TNH,
            "out_ptr": out_TNH,
            "tiles_ptr": plan.tiles_J5,
            "tables_ptr": plan.tables_RB,
            "limits_ptr": plan.limits_T,
            "depths_ptr": plan.limits_T if plan.depths_T is None else plan.depths_T,
            "bits_ptr": plan.limits_T if plan.bits_T is None else plan.bits_T,
            "tree_firsts_ptr": plan.limits_T if plan.tree_firsts_R is None else plan.tree_firsts_R,
            "codes_ptr": kv.raw_codes,
            "scales_ptr": plan.limits_T if scales is None else scales,
            "q_stride_token": q_TNH.stride(0),
            "q_stride_head": q_TNH.stride(1),
            "out_stride_token": out_TNH.stride(0),
            "out_stride_head": out_TNH.stride(1),
            "table_stride": plan.tables_RB.stride(0),
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
            "window": 2**30 if window is None else window,
            "scale_log2": LOG2_E / math.sqrt(head_dim),
        },
        constants={
            "GROUP": num_heads // num_kv_heads,
            "QUERIES": plan.queries,
            "HEAD_DIM": head_dim,
            "HEAD_PAD": max(power_of_two(head_dim), 16),
            "BLOCK_SIZE": block_size,
            "KEYS": keys,
            "QUANTIZED": scales is not None,
            "HAS_TREE": plan.bits_T is not None,
            "HAS_WINDOW": window is not None,
            "PRECISION": dot_precision(q_TNH.dtype),
        },
        num_warps=num_warps,
        num_stages=num_stages,
        max_registers=MAX_REGISTERS,
    )


def extend_attention(
    q_TNH: Tensor, kv: PagedKV, layer: int, plan: ExtendPlan, out_TNH: Tensor, *, window: int | None = None
) -> None:
    """Attend for rows of several tokens."""
    extend_attention_launch(q_TNH, kv, layer, plan, out_TNH, window=window).run()
