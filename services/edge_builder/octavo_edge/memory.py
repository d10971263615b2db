"""The most memory that the process had between two moments. Linux counts it; elsewhere the whole life's is told."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """A measurement that has begun."""

    @staticmethod
    def start() -> PeakMemory:
        """Begin anew, where the kernel allows it.

        What was freed before but not given back to the system is given back first: it would count as used.
        """
        gc.collect()
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # of glibc alone
        with suppress(OSError):
            _CLEAR.write_text("5")  # resets VmHWM to what is resident now
        return PeakMemory()

    def peak_bytes(self) -> int:
        """The most resident bytes since the start, of this process without its children."""
        try:
            line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
            return int(line.split()[1]) * 1024
        except (OSError, StopIteration):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak if sys.platform == "darwin" else peak * 1024
