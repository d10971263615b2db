"""What this machine can do at most, measured: memory reads and products of bytes, with all threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import torch

_ROUNDS = 5
_SIDE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best of some rounds each."""

    # Of a buffer that no cache holds.
    read_gb_per_s: float
    # 10^9 int8 multiplications and additions a second (two for each product), by oneDNN through torch.
    int8_gops: float


@numba.njit(parallel=True, fastmath=True)
def _read(chunks: np.ndarray) -> float:  # pragma: no cover  # compiled
    total = 0.0
    for i in numba.prange(chunks.shape[0]):
        part = 0.0
        for j in range(chunks.shape[1]):
            part += chunks[i, j]
        total += part
    return total


def measure(threads: int, buffer_bytes: int = 2 << 30) -> Ceilings:
    """Measure both; takes some seconds."""
    numba.set_num_threads(threads)
    torch.set_num_threads(threads)
    chunks = np.ones((threads * 16, buffer_bytes // (4 * 16 * threads)), np.float32)
    a, b = (torch.ones((_SIDE, _SIDE), dtype=torch.int8) for _ in range(2))
    # torch has no public name for it.
    multiply = getattr(torch, "_int_mm")  # noqa: B009
    _read(chunks[:1])
    multiply(a, b)
    reads, products = [], []
    for _ in range(_ROUNDS):
        reads.append(_seconds(lambda: _read(chunks)))
        products.append(_seconds(lambda: multiply(a, b)))
    return Ceilings(read_gb_per_s=chunks.nbytes / min(reads) / 1e9, int8_gops=2 * _SIDE**3 / min(products) / 1e9)


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started
