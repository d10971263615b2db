"""Runs compiled loops on the threads of torch's own OpenMP pool. Knows nothing of what the loops compute.

A kernel is a C function `void f(int64_t *args)` that every thread of the team enters once. It draws task numbers from
the atomic counter `args[NEXT]` until `args[NUM_TASKS]`, and a private slot from `args[SLOT]`; the rest is its own.
Sharing the pool matters: a second pool (numba's) would make twice as many threads as cores, and each would spin.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import torch
from numba import types

from octavo_worker.kernels.vector import carray, fetch_add

NEXT = 0
NUM_TASKS = 1
SLOT = 2
FIRST_ARGUMENT = 3

_VOID_P = ctypes.c_void_p


@cache
def _fork() -> tuple[Any, str]:
    """GOMP_parallel of the OpenMP library that torch has loaded, or None and the reason."""
    folder = Path(torch.__file__).parent / "lib"
    found = sorted([*folder.glob("libgomp*"), *folder.glob("libomp*"), *folder.glob("libiomp*")])
    for path in found:
        try:
            call = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        call.argtypes = [_VOID_P, _VOID_P, ctypes.c_uint, ctypes.c_uint]
        call.restype = None
        return call, ""
    return None, "torch's OpenMP library was not found or has no GOMP_parallel: kernels run on one thread"


def why_single_threaded() -> str:
    """Why kernels run on the calling thread only; empty when they use torch's threads."""
    return _fork()[1]


@cache
def granted(num_threads: int) -> int:
    """How many threads a team of so many really has: OpenMP may have a limit of its own."""
    parallel = _fork()[0]
    if num_threads <= 1 or parallel is None:
        return 1
    args = Arguments(FIRST_ARGUMENT)
    # Each thread of the team draws a slot; the call returns when all have.
    parallel(_count_in().address, args.address, num_threads, 0)
    return int(args.values[SLOT])


@cache
def _count_in() -> Launcher:
    def count_in(raw: Any) -> None:
        fetch_add(carray(raw, (FIRST_ARGUMENT,), np.int64).ctypes.data + 8 * SLOT, 1)

    return compiled(count_in)


def compiled(function: Callable[[Any], None]) -> Launcher:
    """Compile `function(raw)`, raw being the address of the arguments. Kept on disk where some folder allows it."""
    signature = types.void(types.voidptr)
    # numba keeps by the source of the kernel's own file; the pieces it is made from may change without it.
    function.__qualname__ += f"_{_digest_of_pieces(function.__module__)}"
    try:
        made = numba.cfunc(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no folder for its cache: a read-only installation without a home
        made = numba.cfunc(signature, error_model="numpy")(function)
    address = made.address
    assert address is not None, "compiled by now"
    return Launcher(address)


def _digest_of_pieces(module_name: str) -> str:
    """Names the sources of all kernel modules that a module takes something from, directly or through others."""
    package, found, waiting = __name__.rpartition(".")[0], set[str](), [module_name]
    while waiting:
        for value in list(vars(sys.modules[waiting.pop()]).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str) and name.startswith(f"{package}.") and name not in found:
                found.add(name)
                waiting.append(name)
    files = [Path(sys.modules[name].__file__ or "") for name in sorted(found - {__name__})]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


class Arguments:
    """The int64 values that a kernel is called with, at an address that is asked for once."""

    __slots__ = ("address", "values")

    def __init__(self, num_values: int) -> None:
        self.values = (ctypes.c_int64 * num_values)()
        self.address = ctypes.addressof(self.values)


class Launcher:
    """One kernel, ready to run. The interpreter lock is released while it runs."""

    __slots__ = ("_alone", "_parallel", "address")

    def __init__(self, address: int) -> None:
        self.address = address
        self._alone = ctypes.CFUNCTYPE(None, _VOID_P)(address)
        self._parallel = _fork()[0]

    def run(self, args: Arguments, num_threads: int) -> None:
        """Run the tasks named by the arguments (see the module) to their end."""
        values = args.values
        values[NEXT] = 0
        values[SLOT] = 0
        if num_threads > 1 and self._parallel is not None:
            self._parallel(self.address, args.address, min(num_threads, values[NUM_TASKS]), 0)
        else:
            self._alone(args.address)
