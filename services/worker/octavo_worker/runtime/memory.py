"""The memory of keys and values. Knows no blocks' owners: only how large the pool is and where it lies."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

_HUGE_PAGE = 2 * 1024 * 1024


def block_bytes(*, num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one block of all layers, K and V."""
    return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize


def allocate_pool(shape: tuple[int, ...], dtype: torch.dtype, *, poison: bool = False) -> Tensor:
    """Zeroed virtual memory that takes no real memory until it is written.

    Asks the kernel for huge pages: rows of a block lie far apart, and address translation would cost as much as
    the arithmetic. `poison` fills it with NaN instead, so that a read of something never written shows.
    """
    num_elements = math.prod(shape)
    num_bytes = num_elements * dtype.itemsize
    region = mmap.mmap(-1, num_bytes + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(region, dtype=torch.uint8)
    first = -memory.data_ptr() % _HUGE_PAGE
    pool = memory[first : first + num_bytes].view(dtype).view(shape)
    if poison:
        # All bits set: NaN as a float of any width.
        memory[first : first + num_bytes] = 255
    return pool


def allocate_device_pool(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, poison: bool = False
) -> Tensor:
    """Zeroed memory of a device, all of it at once; `poison` as above."""
    if device.type == "cpu":
        return allocate_pool(shape, dtype, poison=poison)
    pool = torch.zeros(shape, dtype=dtype, device=device)
    if poison:
        pool.view(torch.uint8).fill_(255)
    return pool
