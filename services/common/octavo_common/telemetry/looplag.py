"""Watches the event loop: how late it is (one blocking call is a gap in all streams' tokens), how many tasks it has."""

from __future__ import annotations

import asyncio

from octavo_common.clock import Clock, until_beat
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments

# An idle process wakes for it.
INTERVAL_S = 5.0


async def measure_loop_lag(instruments: Instruments, clock: Clock) -> None:
    """Record the lag and count the tasks every few seconds until cancelled. Once per process."""
    # Counted in the loop: the gauge may be read on another thread.
    num_tasks = 0
    instruments.observe(names.EVENT_LOOP_TASKS, lambda: [(num_tasks, {})])
    while True:
        num_tasks = len(asyncio.all_tasks())
        before, wait_s = clock.monotonic(), until_beat(clock, INTERVAL_S)
        await clock.sleep(wait_s)
        instruments.record(names.EVENT_LOOP_LAG, max(clock.monotonic() - before - wait_s, 0.0))
