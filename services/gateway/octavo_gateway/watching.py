"""Wakes who watches a job when its row may have changed. Knows neither rows' rules nor callers.

Listens for what is told of all jobs (ends, and what waits), on a connection that is open only while somebody watches.
What nobody is told of is left to the watcher's own polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from typing import Protocol
from uuid import UUID

import structlog

from octavo_common.clock import Clock
from octavo_common.jobs.model import OwnedJob

log = structlog.get_logger(__name__)

# Many jobs end in a second on a busy platform: they are looked for together.
PAUSE_S = 0.02
IDLE_S = 60.0


class Waiter(Protocol):
    """The part of Listener that is needed here."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, or until the time is over."""
        ...


Read = Callable[[Collection[UUID]], Awaitable[Sequence[OwnedJob]]]
Listen = Callable[[], AbstractAsyncContextManager[Waiter]]


class Watches:
    """Those who watch jobs on this gateway."""

    def __init__(self, *, read: Read, listen: Listen, clock: Clock) -> None:
        self._read = read
        self._listen = listen
        self._clock = clock
        self._watchers: dict[UUID, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def num_watched(self) -> int:
        """Jobs that are being watched."""
        return len(self._watchers)

    @asynccontextmanager
    async def watch(self, job_id: UUID) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever the job should be read again. Clear it before each reading."""
        changed = asyncio.Event()
        self._watchers.setdefault(job_id, set()).add(changed)
        if self._task is None or self._task.done():
            # Its own context: what the first watcher's call knows ends before it does.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context(), name="watches")
        try:
            yield changed
        finally:
            self._watchers[job_id].discard(changed)
            if not self._watchers[job_id]:
                del self._watchers[job_id]
            if not self._watchers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                # Raises nothing of the task's: only this watcher's own cancellation.
                await asyncio.wait((task,))

    def wake(self) -> None:
        """Have all watchers look."""
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()

    async def _run(self) -> None:
        try:
            await self._tell()
        except Exception:  # the top of a task: the next watcher starts it anew, and those that are here poll
            log.exception("watches.failed")

    async def _tell(self) -> None:
        known: dict[UUID, tuple[object, ...]] = {}
        async with self._listen() as listener:
            while True:
                if not await listener.wait(IDLE_S):
                    continue
                try:
                    rows = await self._read(list(self._watchers))
                except Exception as error:  # the top of a loop: watchers ask for themselves, and say what they get
                    log.warning("watches.database_failed", error=repr(error))
                    rows = ()
                    self.wake()
                for row in rows:
                    mark = (row.state, row.fence, row.worker_id, row.cancel_requested)
                    if known.get(row.id) != mark:
                        known[row.id] = mark
                        for changed in self._watchers.get(row.id, ()):
                            changed.set()
                known = {job_id: mark for job_id, mark in known.items() if job_id in self._watchers}
                await self._clock.sleep(PAUSE_S)


async def wait_for_change(changed: asyncio.Event, clock: Clock, timeout_s: float) -> None:
    """Until the event is set, or the time is over."""
    waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(clock.sleep(timeout_s))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
