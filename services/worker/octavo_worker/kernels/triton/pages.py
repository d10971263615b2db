"""Pages of keys and values as kernels see them: plain floats, or codes of a byte with a scale for each token and head.

A block of all layers is one contiguous region: the codes `[layers, 2, block, G, H]`, and behind them, where the format
has codes of a byte, the scales `[layers, 2, block, G]` in float32. So one range a block moves everything.
G key-value heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

# Regions begin where 16 bytes may be loaded at once.
_ALIGNMENT = 16


class KVFormat(StrEnum):
    """How keys and values lie in their pages."""

    PLAIN = "plain"
    """In the dtype of the model."""
    INT8 = "int8"
    """round(x / scale), scale = max|x| / 127 over a head of a token."""
    FP8_E4M3 = "fp8_e4m3"
    """x / scale in 3 bits of mantissa, scale = max|x| / 448. From sm_90 on: no conversion exists before."""
    FP8_E5M2 = "fp8_e5m2"
    """x / scale in 2 bits of mantissa, scale = max|x| / 57344."""

    @property
    def code_dtype(self) -> torch.dtype | None:
        """Dtype of the codes; None is the model's."""
        return _CODES[self]

    @property
    def largest(self) -> float:
        """The largest code."""
        return _LARGEST[self]

    @property
    def min_capability(self) -> tuple[int, int]:
        """The first compute capability whose instructions convert it."""
        return (9, 0) if self is KVFormat.FP8_E4M3 else (8, 0)


_CODES = {
    KVFormat.PLAIN: None,
    KVFormat.INT8: torch.int8,
    KVFormat.FP8_E4M3: torch.float8_e4m3fn,
    KVFormat.FP8_E5M2: torch.float8_e5m2,
}
_LARGEST = {
    KVFormat.PLAIN: 0.0,
    KVFormat.INT8: 127.0,
    KVFormat.FP8_E4M3: 448.0,
    KVFormat.FP8_E5M2: 57344.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKV:
    """Views into a pool."""

    # [blocks, layers, 2, block, G, H]
    codes: Tensor
    # [blocks, layers, 2, block, G] float32; None for plain floats.
    scales: Tensor | None = None

    @property
    def format(self) -> KVFormat:
        """Told by the dtype of the codes."""
        if self.scales is None:
            return KVFormat.PLAIN
        return next(name for name, dtype in _CODES.items() if dtype == self.codes.dtype)

    @property
    def raw_codes(self) -> Tensor:
        """Codes as kernels take them: e5m2 as its bits, which are the upper byte of a float16 on every device."""
        return self.codes.view(torch.uint8) if self.codes.dtype == torch.float8_e5m2 else self.codes

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.codes.shape[3]


def region_bytes(format: KVFormat, *, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of one block of a format with codes of a byte, scales included."""
    num_vectors = 2 * num_layers * block_size * num_kv_heads
    scale_bytes = 0 if format is KVFormat.PLAIN else 4
    return -(-num_vectors * (head_dim + scale_bytes) // _ALIGNMENT) * _ALIGNMENT


def view_pages(
    pool: Tensor, format: KVFormat, *, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int
) -> PagedKV:
    """Views into a pool: of floats in its own shape, else of bytes `[blocks, region_bytes]`. Raises ValueError."""
    inner = (num_layers, 2, block_size, num_kv_heads)
    dtype = format.code_dtype
    if dtype is None:
        if pool.shape[1:] != (*inner, head_dim):
            raise ValueError(f"the pool has shape {tuple(pool.shape)}, not [blocks, {(*inner, head_dim)}]")
        return PagedKV(codes=pool)
    size = region_bytes(
        format, num_layers=num_layers, block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    if pool.dtype != torch.uint8 or pool.shape[1:] != (size,) or not pool.is_contiguous():
        raise ValueError(f"the pool is {pool.dtype} {tuple(pool.shape)}, not dense bytes [blocks, {size}]")
    num_vectors = 2 * num_layers * block_size * num_kv_heads
    codes = pool[:, : num_vectors * head_dim].view(dtype).unflatten(1, (*inner, head_dim))
    first = num_vectors * head_dim
    if first % 4:
        raise ValueError(f"codes of {first} bytes leave the scales unaligned")
    scales = pool.view(torch.float32)[:, first // 4 : first // 4 + num_vectors].unflatten(1, inner)
    return PagedKV(codes=codes, scales=scales)
