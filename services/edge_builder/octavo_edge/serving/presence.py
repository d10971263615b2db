"""Says that this builder lives and renews its lease, in one statement; hears with it of lost and cancelled builds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from octavo_common.clock import Clock, until_beat
from octavo_common.errors import OctavoError, Unavailable
from octavo_common.jobs.model import NewProcess
from octavo_common.store import Listener, ProcessStore
from octavo_edge.serving.building import Builds

log = structlog.get_logger(__name__)

RETRY_S = 0.5
# Notifications come in bursts.
MIN_PAUSE_S = 0.05


class Presence:
    """The row of this process. Wakes when its own channel is notified: somebody may have cancelled its build."""

    def __init__(
        self, store: ProcessStore, process: NewProcess, builds: Builds, listener: Listener, clock: Clock
    ) -> None:
        self._store, self._process, self._builds, self._clock = store, process, builds, clock
        self._listener = listener

    async def announce(self, address: str, metrics_address: str) -> None:
        """Write the row, however long the database is away."""
        self._process = replace(self._process, address=address, metrics_address=metrics_address)
        await self._store.announce(self._process, self._clock)

    async def able(self, **capacity: Any) -> None:
        """Say what this process can do, once it knows."""
        self._process = replace(self._process, capacity={**self._process.capacity, **capacity})
        await self._store.register(self._process)

    async def keep(self) -> None:
        """Beat every third of the lease, and when notified, until cancelled."""
        while True:
            try:
                answer = await self._store.heartbeat(
                    self._process.id, load=self._builds.load(), held=self._builds.held()
                )
                if not answer.known:
                    log.warning("process.registered_again")
                    await self._store.register(self._process)
                self._builds.on_answer(answer)
            except Unavailable as error:
                log.warning("process.heartbeat_failed", error=error.message)
                await self._clock.sleep(RETRY_S)
                continue
            except Exception:  # the top of a loop: the next beat may do better
                log.exception("process.heartbeat_failed")
                await self._clock.sleep(RETRY_S)
                continue
            await self._clock.sleep(MIN_PAUSE_S)
            await self._listener.wait(until_beat(self._clock, self._process.lease_s / 3))

    async def drain(self) -> None:
        """Say that nothing new is taken."""
        self._process = replace(self._process, draining=True)
        with suppress(OctavoError):
            await self._store.set_draining(self._process.id)

    async def leave(self) -> None:
        """Remove the row; a courtesy, without it the heartbeat grows old."""
        with suppress(OctavoError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._store.unregister(self._process.id)
