"""Writes figures for people: bytes, seconds, rates, times. Pure."""

from __future__ import annotations

from datetime import datetime

_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_THOUSANDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def size(num_bytes: float) -> str:
    """Bytes, for example ``1.25 GiB``; below 0 as such."""
    for unit, name in _BYTES:
        if abs(num_bytes) >= unit:
            return f"{num_bytes / unit:.4g} {name}"
    return f"{num_bytes:.4g} B"


def count(number: float) -> str:
    """A number with the letter of its thousand, for example ``70.6 G``."""
    for unit, letter in _THOUSANDS:
        if abs(number) >= unit:
            return f"{number / unit:.3g} {letter}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """Seconds, for example ``14.6 ms``."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.3g} µs"


def clock(time: datetime | None) -> str:
    """A time as the console's host has it; nothing for one that has not come."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time else ""
