"""The loop that claims jobs: when it is told, and every poll, because notifications are only hints.

A worker that holds nothing polls after its heartbeats: the process is awake then, and the connection warm.
"""

from __future__ import annotations

import asyncio

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import Unavailable
from octavo_common.store import Listener
from octavo_worker.intake.heartbeat import Heartbeat
from octavo_worker.intake.intake import Intake

log = structlog.get_logger(__name__)

DATABASE_PAUSE_S = 0.5


async def take_jobs(
    intake: Intake, listener: Listener, beat: Heartbeat, *, stopping: asyncio.Event, poll_s: float, clock: Clock
) -> None:
    """Claim until the process stops; wake the listener to end it."""
    while not stopping.is_set():
        told = await listener.wait(poll_s if intake.num_held else max(poll_s, 2 * beat.period_s))
        if told and intake.num_held:
            # Maybe there is nothing to take, and somebody cancelled a job or took one away.
            beat.poke()
        try:
            await intake.claim()
        except Unavailable as error:
            log.warning("jobs.claim_failed", error=error.message)
            await clock.sleep(DATABASE_PAUSE_S)
        except Exception:  # the top of a loop: the next poll may do better, and leases tell if none does
            log.exception("jobs.claim_failed")
            await clock.sleep(DATABASE_PAUSE_S)
