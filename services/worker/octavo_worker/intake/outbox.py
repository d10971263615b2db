"""Brings ends into the job table, however long the database is away: an end that was computed is not lost.

Knows nothing of streams or the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import Unavailable
from octavo_common.jobs.spec import JobFailure
from octavo_common.store import WorkStore
from octavo_worker.intake.attempt import Attempt
from octavo_worker.joblog import End

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0

OnSent = Callable[[Attempt, End | None], None]


class Outbox:
    """One task for each end that is on its way."""

    def __init__(self, store: WorkStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, attempt: Attempt, end: End, on_sent: OnSent) -> None:
        """Commit an end under the attempt's fence, then tell: the end, or None when the fence is over."""
        task = asyncio.create_task(self._send(attempt, end, on_sent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """Give up on what is left."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, attempt: Attempt, end: End, on_sent: OnSent) -> None:
        job, pause_s = attempt.job, FIRST_PAUSE_S
        while True:
            try:
                ours = await self._store.finish(
                    job.id,
                    job.fence,
                    result=end.result,
                    failure=end.failure,
                    cancelled=end.result is None and end.failure is None,
                )
            except Unavailable as error:
                log.warning("job.end_not_committed", job_id=str(job.id), error=error.message, retry_in_s=pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
            except Exception:  # a result that the table refuses must not keep the job for ever
                log.exception("job.end_refused", job_id=str(job.id))
                if end.result is None:
                    on_sent(attempt, None)
                    return
                failure = JobFailure(code="RESULT_NOT_STORED", message="the result could not be stored")
                end = End(failure=failure)
            else:
                on_sent(attempt, end if ours else None)
                return
