"""Writes that nobody waits for, and that must happen all the same. Knows not what they write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import OctavoError, Unavailable

log = structlog.get_logger(__name__)

NUM_TRIES = 60
PAUSE_S = 1.0


class Chores:
    """Tasks that are tried until they work or make no sense any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do it soon, in a context of its own: what the caller's call knows ends before it does."""
        task = asyncio.get_running_loop().create_task(self.insist(work), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def insist(self, work: Callable[[], Awaitable[object]], num_tries: int = NUM_TRIES) -> None:
        """Try until it works: a job whose client has gone must not run on because the database was away."""
        for _ in range(num_tries):
            try:
                await work()
                return
            except OctavoError as error:
                if error.status is not Unavailable.status:
                    log.info("chore.refused", error=error.message)
                    return
                log.warning("chore.failed", error=error.message)
            except Exception:  # the top of a task: there is nobody to raise it to
                log.exception("chore.failed")
            await self._clock.sleep(PAUSE_S)

    async def finish(self) -> None:
        """Wait for all of them."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
