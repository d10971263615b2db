"""The gateway in the table of processes: it registers, and its heartbeat keeps the ownership of its streams fresh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from octavo_common.clock import Clock, until_beat
from octavo_common.jobs.model import NewProcess
from octavo_common.store import ProcessStore

log = structlog.get_logger(__name__)

# A heartbeat that failed is tried again soon, not a third of a lease later.
RETRY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What comes along with each heartbeat: figures to tell, and work to do."""

    load: Callable[[], dict[str, int]]
    # Runs after each good heartbeat.
    chore: Callable[[], Awaitable[None]]


class Presence:
    """The row of this process."""

    def __init__(self, processes: ProcessStore, process: NewProcess, beat: Beat, clock: Clock) -> None:
        self._processes = processes
        self._process = process
        self._beat = beat
        self._clock = clock

    @property
    def id(self) -> UUID:
        """The id of the process."""
        return self._process.id

    async def announce(self, *, address: str, http_address: str, metrics_address: str) -> None:
        """Write the row, however long the database is away."""
        self._process = replace(
            self._process, address=address, http_address=http_address, metrics_address=metrics_address
        )
        await self._processes.announce(self._process, self._clock)

    async def keep(self) -> None:
        """Renew the row every third of the lease, for ever; register again when somebody removed it."""
        while True:
            try:
                answer = await self._processes.heartbeat(self.id, load=self._beat.load())
                if not answer.known:
                    log.warning("process.row_lost")
                    await self._processes.register(self._process)
                await self._beat.chore()
            except Exception as error:  # the top of a loop: the database comes back
                log.warning("process.heartbeat_failed", error=repr(error))
                await self._clock.sleep(RETRY_S)
                continue
            await self._clock.sleep(until_beat(self._clock, self._process.lease_s / 3))

    async def drain(self) -> None:
        """Say that this process takes nothing new. Failing to say so is no reason to stay."""
        self._process = replace(self._process, draining=True)
        try:
            await self._processes.set_draining(self.id)
        except Exception as error:  # the process ends anyway
            log.warning("process.drain_not_told", error=repr(error))

    async def leave(self) -> None:
        """Remove the row."""
        try:
            await self._processes.unregister(self.id)
        except Exception as error:  # its heartbeat will grow old instead
            log.warning("process.unregister_failed", error=repr(error))
