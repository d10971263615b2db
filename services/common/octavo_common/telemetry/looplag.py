"""Measures how late the event loop is: a blocking call in one handler is a gap in the tokens of all streams."""

from __future__ import annotations

from octavo_common.clock import Clock
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments

INTERVAL_S = 0.5


async def measure_loop_lag(instruments: Instruments, clock: Clock) -> None:
    """Record the lag twice a second until cancelled."""
    while True:
        before = clock.monotonic()
        await clock.sleep(INTERVAL_S)
        instruments.record(names.EVENT_LOOP_LAG, max(clock.monotonic() - before - INTERVAL_S, 0.0))
