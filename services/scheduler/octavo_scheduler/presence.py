"""Says that this process lives: its row in `processes` and the heartbeat that keeps it fresh."""

from __future__ import annotations

import structlog

from octavo_common.clock import Clock, until_beat
from octavo_common.errors import Unavailable
from octavo_common.jobs.model import NewProcess
from octavo_common.store import ProcessStore

log = structlog.get_logger(__name__)

RETRY_S = 0.5


async def keep_present(store: ProcessStore, process: NewProcess, clock: Clock) -> None:
    """Heartbeat every third of the lease until cancelled; register again when the row is gone."""
    while True:
        try:
            answer = await store.heartbeat(process.id)
            if not answer.known:
                log.warning("process.registered_again")
                await store.register(process)
        except Unavailable as error:
            log.warning("process.heartbeat_failed", error=error.message)
            await clock.sleep(RETRY_S)
            continue
        await clock.sleep(until_beat(clock, process.lease_s / 3))
