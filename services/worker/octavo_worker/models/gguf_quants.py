"""What the bits of GGUF's tensor types mean: blocks of bytes to float32, vectorised over blocks.

Legend: B blocks, 32 or 256 weights a block. Knows nothing of files. Each function fills ``out`` (float32 [B, weights])
from ``raw`` (uint8 [B, bytes]); the arithmetic is the format's own, operation by operation, so values equal ggml's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from octavo_worker.models.base import Floats

Bytes = NDArray[np.uint8]

_BITS_32 = np.arange(32, dtype=np.uint32)


def _half(raw: Bytes, at: int) -> Floats:
    """The float16 at a byte of every block, as a column."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(raw: Bytes, at: int, out: Floats) -> None:
    """16 bytes of every block: low nibbles are the first 16 weights, high nibbles the last 16."""
    packed = raw[:, at : at + 16]
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _fifth_bits(raw: Bytes, at: int) -> NDArray[np.uint8]:
    """32 bits of every block, lowest first, each worth 16."""
    word = np.ascontiguousarray(raw[:, at : at + 4]).view("<u4")
    return (((word >> _BITS_32) & 1) << 4).astype(np.uint8)


def _f32(raw: Bytes, out: Floats) -> None:
    out[:] = raw.view("<f4")


def _f16(raw: Bytes, out: Floats) -> None:
    out[:] = raw.view("<f2")


def _bf16(raw: Bytes, out: Floats) -> None:
    np.left_shift(raw.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")


def _q4_0(raw: Bytes, out: Floats) -> None:
    _nibbles(raw, 2, out)
    out -= 8
    out *= _half(raw, 0)


def _q4_1(raw: Bytes, out: Floats) -> None:
    _nibbles(raw, 4, out)
    out *= _half(raw, 0)
    out += _half(raw, 2)


def _q5_0(raw: Bytes, out: Floats) -> None:
    _nibbles(raw, 6, out)
    out += _fifth_bits(raw, 2)
    out -= 16
    out *= _half(raw, 0)


def _q5_1(raw: Bytes, out: Floats) -> None:
    _nibbles(raw, 8, out)
    out += _fifth_bits(raw, 4)
    out *= _half(raw, 0)
    out += _half(raw, 2)


def _q8_0(raw: Bytes, out: Floats) -> None:
    out[:] = raw[:, 2:].view(np.int8)
    out *= _half(raw, 0)


def _q4_k(raw: Bytes, out: Floats) -> None:
    """Eight groups of 32 with 6-bit scales and minima, packed in 12 bytes."""
    low, mid, high = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate((low & 63, (high & 15) | ((low >> 2) & 48)), axis=1)
    minima = np.concatenate((mid & 63, (high >> 4) | ((mid >> 2) & 48)), axis=1)
    groups = out.reshape(-1, 8, 32)
    packed = raw[:, 16:].reshape(-1, 4, 32)
    groups[:, 0::2] = packed & 15
    groups[:, 1::2] = packed >> 4
    groups *= (_half(raw, 0) * scales)[:, :, None]
    groups -= (_half(raw, 2) * minima)[:, :, None]


def _q6_k(raw: Bytes, out: Floats) -> None:
    """Two halves of 128; the low 4 bits of 128 weights in 64 bytes, their high 2 bits in 32; 16 signed scales."""
    low = raw[:, :128].reshape(-1, 2, 2, 32)
    high = raw[:, 128:192].reshape(-1, 2, 32)
    # [B, half, quarter, 32]
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        nibble = (low[:, :, quarter % 2] >> (4 * (quarter // 2))) & 15
        quarters[:, :, quarter] = nibble | (((high >> (2 * quarter)) & 3) << 4)
    out -= 32
    scales = raw[:, 192:208].view(np.int8)
    groups = out.reshape(-1, 16, 16)
    groups *= (_half(raw, 208) * scales)[:, :, None]


_Q = GGMLQuantizationType
_DECODERS: dict[GGMLQuantizationType, Callable[[Bytes, Floats], None]] = {
    _Q.F32: _f32,
    _Q.F16: _f16,
    _Q.BF16: _bf16,
    _Q.Q4_0: _q4_0,
    _Q.Q4_1: _q4_1,
    _Q.Q5_0: _q5_0,
    _Q.Q5_1: _q5_1,
    _Q.Q8_0: _q8_0,
    _Q.Q4_K: _q4_k,
    _Q.Q6_K: _q6_k,
}

SUPPORTED = frozenset(_DECODERS)


def dequantize(kind: GGMLQuantizationType, raw: Bytes, out: Floats) -> None:
    """Decode whole blocks: flat bytes to as many flat float32 values. The type must be in SUPPORTED."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if block == 1:
        _DECODERS[kind](raw, out)
    else:
        _DECODERS[kind](raw.reshape(-1, block_bytes), out.reshape(-1, block))
