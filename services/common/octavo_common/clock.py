"""The one place that reads time. Everything else takes a Clock as a parameter."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What code that waits or measures needs."""

    def monotonic(self) -> float:
        """Seconds on a clock that only moves forward."""
        ...

    def time(self) -> float:
        """Seconds since the epoch; for display only, leases count database time."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds on a clock that only moves forward."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()  # noqa: TID251 - the one place

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""
        await asyncio.sleep(seconds)
