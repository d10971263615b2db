"""Puts the keys and values of the fed tokens into their slots ("reshape and cache").

    code[slot(t), g, :] = k[t, g, :]                                     plain floats
    scale[slot(t), g]   = max_h |k[t, g, h]| / largest                    codes of a byte
    code[slot(t), g, h] = convert(k[t, g, h] / scale)                     to the nearest; int8: halves up

T fed tokens, G key-value heads, H head dim. `k, v: [T, G, H]`, `slots: int64 [T]` (block * block_size + offset; below
0: nothing is written, which is how a captured batch is padded), pages as in `pages.py`. The values likewise.

Source: the slots of PagedAttention (arXiv 2309.06180); fp8 ranges from arXiv 2209.05433. A scale for each token and
head, because slots are written one by one: a scale of a whole page would have to requantise what lies there already.
"""

# In a kernel Triton makes constants of literals, which the type checker cannot know.
# pyright: reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_worker.kernels.triton.launch import FLOATS, Launch, power_of_two, require, require_tensor
from octavo_worker.kernels.triton.pages import KVFormat, PagedKV

# Elements that one program holds.
_PROGRAM = 4096
# Bits behind the point, and the exponent of the smallest normal number.
_MANTISSA = {KVFormat.FP8_E4M3: 3, KVFormat.FP8_E5M2: 2}
_MIN_EXPONENT = {KVFormat.FP8_E4M3: -6, KVFormat.FP8_E5M2: -14}


@triton.jit
def _round(x, MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr):
    """To the nearest of a small float, ties to even, still in float32: so all devices convert alike, exactly."""
    DROPPED: tl.constexpr = 23 - MANTISSA
    bits = x.to(tl.int32, bitcast=True)
    rounded = bits + ((bits >> DROPPED) & 1) + ((1 << (DROPPED - 1)) - 1)
    normal = ((rounded >> DROPPED) << DROPPED).to(tl.float32, bitcast=True)
    # Below the smallest normal number the grid is even: adding a large number rounds to it.
    LARGE: tl.constexpr = 1.5 * 2.0 ** (23 + MIN_EXPONENT - MANTISSA)
    return tl.where(tl.abs(x) < 2.0**MIN_EXPONENT, (x + LARGE) - LARGE, normal)


@triton.jit
def _store(
    x_GH, codes_ptr, scales_ptr, at, scale_at, g_G, h_H, valid_GH, valid_G, stride_head, scale_stride_head,
    largest, QUANTIZED: tl.constexpr, MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr,
):  # fmt: skip
    place_GH = codes_ptr + at + g_G[:, None].to(tl.int64) * stride_head + h_H[None, :]
    if QUANTIZED:
        x_GH = x_GH.to(tl.float32)
        scale_G = tl.max(tl.abs(x_GH), axis=1) / largest
        # A head of zeros has scale 0, and codes 0 by any divisor.
        codes_GH = x_GH / tl.where(scale_G > 0.0, scale_G, 1.0)[:, None]
        if MANTISSA == 0:
            codes_GH = tl.floor(codes_GH + 0.5)
        else:
            # Rounding of the division must not carry the largest past the format's end, which is NaN or infinity.
            codes_GH = tl.minimum(tl.maximum(codes_GH, -largest), largest)
            codes_GH = _round(codes_GH, MANTISSA, MIN_EXPONENT)
        if codes_ptr.dtype.element_ty == tl.uint8:
            # e5m2: the upper byte of a float16, which holds every rounded value exactly.
            codes_GH = (codes_GH.to(tl.float16).to(tl.uint16, bitcast=True) >> 8).to(tl.uint8)
        tl.store(place_GH, codes_GH.to(codes_ptr.dtype.element_ty), mask=valid_GH)
        tl.store(scales_ptr + scale_at + g_G * scale_stride_head, scale_G, mask=valid_G)
    else:
        tl.store(place_GH, x_GH.to(codes_ptr.dtype.element_ty), mask=valid_GH)


@triton.jit
def _write_kv(
    k_ptr, v_ptr, slots_ptr, codes_ptr, scales_ptr,
    k_stride_token, k_stride_head, v_stride_token, v_stride_head,
    stride_block, stride_slot, stride_head, key_offset, value_offset,
    scale_stride_block, scale_stride_slot, scale_stride_head, scale_key_offset, scale_value_offset,
    largest,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr, HEAD_PAD: tl.constexpr,
    QUANTIZED: tl.constexpr, MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        g_G = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        h_H = tl.arange(0, HEAD_PAD)
        valid_G = g_G < NUM_KV_HEADS
        valid_GH = valid_G[:, None] & (h_H < HEAD_DIM)[None, :]
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        at = block * stride_block + offset * stride_slot
        scale_at = block * scale_stride_block + offset * scale_stride_slot
        k_GH = tl.load(
            k_ptr + token * k_stride_token + g_G[:, None] * k_stride_head + h_H[None, :], mask=valid_GH, other=0.0
        )
        v_GH = tl.load(
            v_ptr + token * v_stride_token + g_G[:, None] * v_stride_head + h_H[None, :], mask=valid_GH, other=0.0
        )
        _store(
            k_GH, codes_ptr, scales_ptr, at + key_offset, scale_at + scale_key_offset, g_G, h_H, valid_GH, valid_G,
            stride_head, scale_stride_head, largest, QUANTIZED, MANTISSA, MIN_EXPONENT,
        )  # fmt: skip
        _store(
            v_GH, codes_ptr, scales_ptr, at + value_offset, scale_at + scale_value_offset, g_G, h_H, valid_GH, valid_G,
            stride_head, scale_stride_head, largest, QUANTIZED, MANTISSA, MIN_EXPONENT,
        )  # fmt: skip


def write_kv_launch(k_TGH: Tensor, v_TGH: Tensor, slots_T: Tensor, kv: PagedKV, layer: int) -> Launch:
    """The launch that writes one layer. Raises ValueError for arguments that do not fit each other."""
    codes, scales = kv.codes, kv.scales
    num_layers, _, block_size, num_kv_heads, head_dim = codes.shape[1:]
    num_tokens, device = k_TGH.shape[0], k_TGH.device
    for name, x in (("k", k_TGH), ("v", v_TGH)):
        require_tensor(name, x, (num_tokens, num_kv_heads, head_dim), FLOATS, device=device)
    require(k_TGH.dtype == v_TGH.dtype, "k and v have different dtypes")
    require_tensor("slots", slots_T, (num_tokens,), (torch.int64,), device=device)
    require(codes.device == device, f"the pool is on {codes.device}, the tokens are on {device}")
    require(scales is not None or codes.dtype in FLOATS, f"a pool of {codes.dtype} needs scales")
    require(0 <= layer < num_layers, f"layer {layer} is not one of {num_layers}")
    require(codes.stride(-1) == 1, "the last dim of the pool is not dense")
    head_pad = power_of_two(head_dim)
    heads = min(power_of_two(num_kv_heads), max(1, _PROGRAM // head_pad))
    some = codes if scales is None else scales  # never read where there are no scales
    strides = (0, 0, 0, 0, 0) if scales is None else scales.stride()
    return Launch(
        kernel=_write_kv,
        grid=(num_tokens, triton.cdiv(num_kv_heads, heads)),
        args={
            "k_ptr": k_TGH,
            "v_ptr": v_TGH,
            "slots_ptr": slots_T,
            "codes_ptr": kv.raw_codes,
            "scales_ptr": some,
            "k_stride_token": k_TGH.stride(0),
            "k_stride_head": k_TGH.stride(1),
            "v_stride_token": v_TGH.stride(0),
            "v_stride_head": v_TGH.stride(1),
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
            "largest": kv.format.largest,
        },
        constants={
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": block_size,
            "HEADS": heads,
            "HEAD_PAD": head_pad,
            "QUANTIZED": scales is not None,
            "MANTISSA": _MANTISSA.get(kv.format, 0),
            "MIN_EXPONENT": _MIN_EXPONENT.get(kv.format, 0),
        },
        num_warps=4,
    )


def write_kv(k_TGH: Tensor, v_TGH: Tensor, slots_T: Tensor, kv: PagedKV, layer: int) -> None:
    """Write the fed tokens' keys and values of one layer into their slots."""
    write_kv_launch(k_TGH, v_TGH, slots_T, kv, layer).run()
