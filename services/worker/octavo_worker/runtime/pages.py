"""Puts memory that is read over and over into huge pages. Linux only; elsewhere it does nothing.

A step reads every weight once, in order. With pages of 4 KiB a virtual machine walks two page tables for each of them:
measured side by side, the linear maps of a step take a fifth to a third less time with weights in pages of 2 MiB.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

_HUGE_PAGE = 2 * 1024 * 1024
_SMALL_PAGE = 4096
_MADV_HUGEPAGE = 14
# Linux 6.1: copies the pages together at once, instead of leaving it to a thread that needs minutes.
_MADV_COLLAPSE = 25
# Emptier ones stay as they are: a huge page is whole, and would take memory that nobody uses.
_FULL_ENOUGH = 0.9
# A kernel that refuses so many in a row refuses all.
_MAX_REFUSALS = 8
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*(\[heap\])?$")


def collapse_resident_memory() -> int:
    """Move this process's private memory, where it is in use, into huge pages. Returns the bytes that were moved."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    num_moved = num_refused = 0
    for address in _huge_page_addresses(maps.read_text()):
        if not _is_full(libc, address):
            continue
        libc.madvise(address, _HUGE_PAGE, _MADV_HUGEPAGE)
        if libc.madvise(address, _HUGE_PAGE, _MADV_COLLAPSE) == 0:
            num_moved, num_refused = num_moved + 1, 0
        elif (num_refused := num_refused + 1) == _MAX_REFUSALS and not num_moved:
            break
    return num_moved * _HUGE_PAGE


def _huge_page_addresses(maps: str) -> Iterator[int]:
    for line in maps.splitlines():
        found = _MAPPING.match(line)
        if found:
            start, end = int(found[1], 16), int(found[2], 16)
            yield from range(-(-start // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE + 1, _HUGE_PAGE)


def _is_full(libc: ctypes.CDLL, address: int) -> bool:
    resident = ctypes.create_string_buffer(_HUGE_PAGE // _SMALL_PAGE)
    if libc.mincore(address, _HUGE_PAGE, resident) != 0:
        return False
    return sum(page & 1 for page in resident.raw) >= _FULL_ENOUGH * len(resident)
