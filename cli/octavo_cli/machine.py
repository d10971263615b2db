"""Measures this machine for planning: how fast all its cores read memory, and multiply in float32."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor

import psutil

from octavo_common.clock import Clock
from octavo_common.errors import FailedPrecondition
from octavo_common.plan.devices import Device
from octavo_common.plan.formats import Arithmetic

# Far larger than caches.
_BUFFER_BYTES = 192 << 20
_ROUNDS = 5
_SIZE = 1536


def measure(clock: Clock) -> Device:
    """Measure this machine as a device; takes about a second. Raises FailedPrecondition without numpy."""
    if importlib.util.find_spec("numpy") is None:
        raise FailedPrecondition(
            "this machine's arithmetic is measured with numpy, which is not installed",
            hint="give its figures with --memory-gb, --bandwidth-gb and --peak-tflops",
        )
    return Device(
        name="cpu",
        memory_bytes=float(psutil.virtual_memory().total),
        bandwidth=_bandwidth(clock),
        peaks={Arithmetic.FLOAT32: _flops(clock)},
    )


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bandwidth(clock: Clock) -> float:
    """Bytes a second of memcmp over equal buffers, one pair a core: reads alone, as a decode step's."""
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    cores = num_cores()
    half = _BUFFER_BYTES // (2 * cores)
    # Written, so that each page is memory of its own and not the one page of zeros.
    pairs = [(bytearray(b"\1") * half, bytearray(b"\1") * half) for _ in range(cores)]
    places = [tuple(ctypes.addressof(ctypes.c_char.from_buffer(part)) for part in pair) for pair in pairs]
    best_s = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(_ROUNDS):
            started_s = clock.monotonic()
            list(pool.map(lambda place: compare(place[0], place[1], half), places))
            best_s = min(best_s, clock.monotonic() - started_s)
    return 2 * half * cores / best_s


def _flops(clock: Clock) -> float:
    """Operations a second of a square product by the BLAS that numpy carries."""
    import numpy as np

    left = np.ones((_SIZE, _SIZE), dtype=np.float32)
    out = np.empty_like(left)
    best_s = float("inf")
    for _ in range(_ROUNDS):
        started_s = clock.monotonic()
        np.matmul(left, left, out=out)
        best_s = min(best_s, clock.monotonic() - started_s)
    return 2 * _SIZE**3 / best_s
