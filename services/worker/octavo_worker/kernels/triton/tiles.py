"""The inner step that the attention kernels share: one tile of keys and values, folded into a running softmax.

For a tile of queries M, keys S and head dim H, with the running maximum m, sum l and result a of each query:

    s  = scale * log2(e) * q k^T              (int8, fp8: times the scale of each key)
    m' = max(m, max_S s);  p = 2^(s - m')     hidden keys: p = 0
    l' = l * 2^(m - m') + sum_S p
    a' = a * 2^(m - m') + p v                 (int8, fp8: p times the scale of each value)

Keys lie in pages, so each is fetched by its own address. A key that no query of the tile may see is not read at all:
free pages may hold anything, NaN too.

Source: online softmax (arXiv 1805.02867), FlashAttention-2 (arXiv 2307.08691), PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# The smallest tile that the matrix units take.
MIN_QUERIES = 16
# Said aloud, though it is what a thread may have anyway: otherwise the assembler spills a few bytes for occupancy.
MAX_REGISTERS = 255


def most_queries(head_dim: int, dtype: torch.dtype) -> int:
    """Queries of the largest tile whose running result stays in registers, on every device from sm_80 on."""
    if dtype == torch.float32:
        return 32 if head_dim <= 128 else 16
    return 64 if head_dim <= 128 else 32


def tile_shape(head_dim: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Keys of a tile, warps and stages that fit the shared memory and registers of every device from sm_80 on."""
    if dtype == torch.float32:
        # Exact float32 is multiplied without matrix units, from registers: there are none left to load ahead.
        return 16, 8, 1
    if head_dim <= 64:
        return 64, 4, 2
    return (64 if head_dim <= 128 else 32), 8, 2


@triton.jit
def _widen(codes, dtype: tl.constexpr, QUANTIZED: tl.constexpr):
    """Codes in the queries' dtype, exactly. By way of float32: the interpreter makes no bfloat16 of integers."""
    if codes.dtype == tl.uint8:
        # The bits of e5m2 are the upper byte of a float16. Triton 3.6 has no other conversion on sm_80.
        codes = (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    if QUANTIZED:
        codes = codes.to(tl.float32)
    return codes.to(dtype)


@triton.jit
def _dot(a, b, sum, PRECISION: tl.constexpr):
    """Sum + a b. Triton's interpreter multiplies the bit patterns of bfloat16, so there they become float32 first."""
    if PRECISION == "upcast":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sum, input_precision="ieee")
    else:  # noqa: RET505 - a constant condition: the other branch is not compiled
        return tl.dot(a, b, sum, input_precision=PRECISION)


@triton.jit
def fold_tile(  # noqa: ANN201 - a tuple of Triton's tensors
    q_MH, result_MH, max_M, sum_M, s_S, readable_S, visible_MS,
    codes_ptr, scales_ptr, table_ptr, stride_block, stride_slot, key_at, value_at,
    scale_stride_block, scale_stride_slot, scale_key_at, scale_value_at, scale_log2,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    MASKED: tl.constexpr, QUANTIZED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(result, maximum, sum) after one more tile. Without MASKED every key is visible to every query.

    `key_at`, `value_at` are element offsets of layer and head within a block; `table_ptr` is the row's block table.
    """
    h_H = tl.arange(0, HEAD_PAD)
    valid_SH = (h_H < HEAD_DIM)[None, :]
    if MASKED:
        block_S = tl.load(table_ptr + s_S // BLOCK_SIZE, mask=readable_S, other=0).to(tl.int64)
        valid_SH = readable_S[:, None] & valid_SH
    else:
        block_S = tl.load(table_ptr + s_S // BLOCK_SIZE).to(tl.int64)
        valid_SH = (s_S >= 0)[:, None] & valid_SH
    offset_S = s_S % BLOCK_SIZE
    at_SH = (block_S * stride_block + offset_S * stride_slot)[:, None] + h_H[None, :]
    k_SH = tl.load(codes_ptr + key_at + at_SH, mask=valid_SH, other=0.0)
    if QUANTIZED:
        scale_at_S = block_S * scale_stride_block + offset_S * scale_stride_slot
        if MASKED:
            k_scale_S = tl.load(scales_ptr + scale_key_at + scale_at_S, mask=readable_S, other=0.0)
            v_scale_S = tl.load(scales_ptr + scale_value_at + scale_at_S, mask=readable_S, other=0.0)
        else:
            k_scale_S = tl.load(scales_ptr + scale_key_at + scale_at_S)
            v_scale_S = tl.load(scales_ptr + scale_value_at + scale_at_S)
    else:
        k_scale_S = tl.full([1], 1.0, tl.float32)
        v_scale_S = k_scale_S
    k_SH = _widen(k_SH, q_MH.dtype, QUANTIZED)
    score_MS = _dot(q_MH, tl.trans(k_SH), tl.zeros([q_MH.shape[0], s_S.shape[0]], tl.float32), PRECISION)
    if QUANTIZED:
        score_MS = score_MS * k_scale_S[None, :]
    score_MS = score_MS * scale_log2
    if MASKED:
        score_MS = tl.where(visible_MS, score_MS, float("-inf"))
    new_max_M = tl.maximum(max_M, tl.max(score_MS, axis=1))
    # A query that has seen nothing yet: -inf minus -inf would be NaN.
    base_M = tl.where(new_max_M == float("-inf"), 0.0, new_max_M)
    p_MS = tl.exp2(score_MS - base_M[:, None])
    kept_M = tl.exp2(max_M - base_M)
    sum_M = sum_M * kept_M + tl.sum(p_MS, axis=1)
    if QUANTIZED:
        p_MS = p_MS * v_scale_S[None, :]
    v_SH = tl.load(codes_ptr + value_at + at_SH, mask=valid_SH, other=0.0)
    v_SH = _widen(v_SH, q_MH.dtype, QUANTIZED)
    result_MH = result_MH * kept_M[:, None]
    result_MH = _dot(p_MS.to(q_MH.dtype), v_SH, result_MH, PRECISION)
    return result_MH, new_max_M, sum_M
