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


def until_beat(clock: Clock, period_s: float) -> float:
    """Seconds until the monotonic clock shows a whole multiple of a period: 0.1 to 1.1 periods.

    All that a machine's processes do now and then falls together by it, and each of them wakes once for all: waking is
    most of what an idle platform takes.
    """
    left_s = period_s - clock.monotonic() % period_s
    return left_s if left_s > 0.1 * period_s else left_s + period_s


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
