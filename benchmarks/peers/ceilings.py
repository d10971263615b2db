"""What this machine can do at most, measured: memory reads and products of bytes, with all threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

_ROUNDS = 15
_SIDE = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The best of some rounds each."""

    # Of a buffer that no cache holds.
    read_gb_per_s: float
    # 10^9 int8 multiplications and additions a second (two for each product), by oneDNN through torch, in the better
    # of two ways: plain, and with weights in blocks, which takes the matrix unit where there is one.
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
    multiply = _products()
    _read(chunks[:1])
    for one in multiply:
        one()
    reads, products = [], []
    for _ in range(_ROUNDS):
        reads.append(_seconds(lambda: _read(chunks)))
        products += [_seconds(one) for one in multiply]
    return Ceilings(read_gb_per_s=chunks.nbytes / min(reads) / 1e9, int8_gops=2 * _SIDE**3 / min(products) / 1e9)


def _products() -> list[Callable[[], object]]:
    """Ways to multiply two matrices of bytes; torch has public names for none of them."""
    x, w = (torch.ones((_SIDE, _SIDE), dtype=dtype) for dtype in (torch.uint8, torch.int8))
    plain = getattr(torch, "_int_mm")  # noqa: B009
    ways: list[Callable[[], object]] = [lambda: plain(w, w)]
    blocks: Any = torch.ops.onednn
    if hasattr(blocks, "qlinear_prepack"):
        packed = blocks.qlinear_prepack(w, [_SIDE, _SIDE])
        scales, zeros = torch.ones(_SIDE), torch.zeros(_SIDE, dtype=torch.int64)
        rest = (packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        ways.append(lambda: blocks.qlinear_pointwise(x, 1.0, 0, *rest))
    return ways


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started
