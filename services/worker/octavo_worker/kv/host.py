"""Host memory for the blocks of preempted sequences. Knows no slots' owners: only how many there are and where."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor


def map_slots(pool: Tensor, num_slots: int) -> Tensor:
    """``[num_slots, ...]``: room for so many blocks of a pool, in memory of its own.

    Mapped, not allocated: it takes no real memory before a slot is written, and it is one range, so a block is moved
    by one copy. For a pool on a GPU it is pinned, so that the GPU moves it by itself; then all is taken at once.
    """
    shape = (num_slots, *pool.shape[1:])
    if pool.is_cuda:
        return torch.empty(shape, dtype=pool.dtype, pin_memory=True)
    if num_slots == 0:
        return torch.empty(shape, dtype=pool.dtype)
    region = mmap.mmap(-1, math.prod(shape) * pool.dtype.itemsize)
    return torch.frombuffer(region, dtype=torch.uint8).view(pool.dtype).view(shape)
