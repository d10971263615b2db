"""The scheduler's loop: leads or stands by, places jobs when something changes, and keeps the table in order.

Knows no SQL and no rule of placement: it reads, asks, writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from octavo_common.clock import Clock, until_beat
from octavo_common.errors import Unavailable
from octavo_common.jobs.model import Assignment, Due, QueuedJob
from octavo_common.store import Listener, PlacementStore
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments
from octavo_scheduler.fleet import Fleet
from octavo_scheduler.placement import place
from octavo_scheduler.reaper import Contact, Reaper
from octavo_scheduler.settings import SchedulerSettings
from octavo_scheduler.spans import Spans
from octavo_scheduler.watch import WorkerWatch

log = structlog.get_logger(__name__)

RETRY_S = 0.2
# Opaque: made by the store, given back to it, invalidated and closed here.
LeadConnection = Any


@dataclass(slots=True)
class Figures:
    """What GetStatus and /metrics tell. Written by the loop only."""

    placing: bool = False
    num_queued: int = 0
    num_assigned: int = 0
    num_workers: dict[str, int] = field(default_factory=lambda: {"usable": 0, "not_usable": 0})


class PlacementLoop:
    """Runs until cancelled."""

    def __init__(
        self,
        *,
        store: PlacementStore,
        listener: Listener,
        fleet: Fleet,
        watch: WorkerWatch,
        instruments: Instruments,
        spans: Spans,
        settings: SchedulerSettings,
        clock: Clock,
    ) -> None:
        self.figures = Figures()
        self._store = store
        self._listener = listener
        self._fleet = fleet
        self._watch = watch
        self._instruments = instruments
        self._spans = spans
        self._settings = settings
        self._clock = clock
        # So often the table is read while nothing waits and nothing is due, together with the heartbeat.
        self._idle_poll_s = max(settings.poll_s, settings.lease_s / 3)
        # A lease that was renewed on time outlives such a silence.
        self._contact = Contact(clock, max_silence_s=max(settings.lease_s / 2, settings.poll_s * 3))
        self._reaper = Reaper(store, self._contact, lease_s=settings.lease_s)
        self._next_upkeep = 0.0
        self._next_prune = 0.0

    async def run(self) -> None:
        """Stand by until the lead is free, lead until it is lost, and again."""
        while True:
            try:
                connection = await self._store.lead_connection()
            except Unavailable:
                self._contact.lost()
                await self._clock.sleep(RETRY_S)
                continue
            try:
                await self._stand_by(connection)
                await self._lead(connection)
            except Unavailable as error:
                self._contact.lost()
                log.warning("scheduler.contact_lost", error=error.message, was_placing=self.figures.placing)
            finally:
                self.figures.placing = False
                await _close(connection)
            await self._clock.sleep(RETRY_S)

    async def _stand_by(self, connection: LeadConnection) -> None:
        while await self._store.try_lead(connection) is None:
            self._contact.good()
            await self._clock.sleep(self._settings.standby_poll_s)
        self._contact.good()

    async def _lead(self, connection: LeadConnection) -> None:
        log.info("scheduler.leads")
        self.figures.placing = True
        self._next_upkeep = 0.0
        pause_s = self._settings.poll_s
        while True:
            notified = await self._listener.wait(pause_s)
            due, pause_s = None, self._settings.poll_s
            if not notified or self._clock.monotonic() >= self._next_upkeep:
                # The lead lives and dies with this connection; losing it raises Unavailable.
                due = await self._store.try_lead(connection)
                if due is None:
                    raise Unavailable("the lead was lost")
                self._contact.good()
            if notified or due is None or due.queued:
                while await self._place():
                    pass
            else:
                self.figures.num_queued = 0
                await self._look_at_workers()
            if due is not None:
                await self._upkeep(due)
                self._next_upkeep = self._clock.monotonic() + self._settings.poll_s
                if not notified and self._is_quiet(due):
                    pause_s = until_beat(self._clock, self._idle_poll_s)

    def _is_quiet(self, due: Due) -> bool:
        """Whether nothing can happen until the next idle poll of which no notification tells."""
        is_later = due.next_s is None or due.next_s > 1.2 * self._idle_poll_s
        return is_later and not (due.queued or due.late or due.lost)

    async def _place(self) -> bool:
        """One round. True when another one at once may place more."""
        started, started_at_s = self._clock.monotonic(), self._clock.time()
        # First, because what waits decides whether the workers must be read at all.
        queue = await self._store.queue(self._settings.page)
        self._contact.good()
        self.figures.num_queued = len(queue)
        if self._fleet.age_s >= self._settings.poll_s:
            await self._look_at_workers()
        self._count_workers()
        if not queue:
            return False
        for suspect in self._fleet.learn(queue):
            self._watch.probe(suspect)
        assignments = place(queue, self._fleet.views())
        if len(assignments) < len(queue) and self._fleet.age_s > self._clock.monotonic() - started:
            # Somebody may have become free since the last look.
            await self._look_at_workers()
            assignments = place(queue, self._fleet.views())
        if not assignments:
            return False
        took = await self._assign(queue, assignments, started_at_s)
        self._instruments.record(names.PLACEMENT_ROUND_TIME, self._clock.monotonic() - started)
        # A full page hides what comes after it; an assignment that did not take leaves a place free.
        return took > 0 and (len(queue) >= self._settings.page or took < len(assignments))

    async def _look_at_workers(self) -> None:
        rows = await self._store.fleet()
        self._fleet.update(rows)
        self._watch.follow(rows)
        self._count_workers()

    def _count_workers(self) -> None:
        num_usable = len(self._fleet.views())
        self.figures.num_workers = {"usable": num_usable, "not_usable": self._fleet.num_workers - num_usable}

    async def _assign(self, queue: Sequence[QueuedJob], assignments: Sequence[Assignment], started_at_s: float) -> int:
        read_at = self._clock.monotonic()
        took = set(await self._store.assign(assignments))
        jobs = {job.id: job for job in queue}
        waited_s = self._clock.monotonic() - read_at
        effective = [(jobs[assignment.job_id], assignment) for assignment in assignments if assignment.job_id in took]
        ended_at_s = self._clock.time()
        for job, assignment in effective:
            self._fleet.assigned(job, assignment)
            if not job.resumed:
                self._instruments.record(names.PLACEMENT_TIME, job.age_s + waited_s)
            log.info(
                "job.assigned",
                job_id=str(job.id),
                worker_id=str(assignment.worker_id),
                fence=job.fence + 1,
                waited_s=round(job.age_s, 4),
            )
        self.figures.num_assigned += len(took)
        self.figures.num_queued -= len(took)
        self._instruments.add(names.JOBS_ASSIGNED, len(took))
        self._spans.placed(effective, started_s=started_at_s, ended_s=ended_at_s)
        return len(took)

    async def _upkeep(self, due: Due) -> None:
        if due.late:
            expired = await self._store.expire_deadlines()
            log.info("jobs.expired", num_jobs=expired)
            self._instruments.add(names.JOBS_EXPIRED, expired)
        if due.lost:
            await self._reap(due.server_age_s)
        if self._clock.monotonic() >= self._next_prune:
            await self._prune()
        self._contact.good()

    async def _reap(self, server_age_s: float) -> None:
        reaped = await self._reaper.run(server_age_s)
        for outcome, count in reaped.items():
            self._instruments.add(names.JOBS_REAPED, count, {names.OUTCOME: outcome})
        if reaped["queued"]:
            self._listener.wake()

    async def _prune(self) -> None:
        """One chunk, so that placement never waits for a large one; the next comes a second later."""
        pruned = await self._store.prune(self._settings.job_retention_s)
        if any((pruned.num_contents, pruned.num_jobs, pruned.num_processes)):
            log.info("jobs.pruned", num_contents=pruned.num_contents, num_jobs=pruned.num_jobs)
            self._instruments.add(names.JOBS_PRUNED, pruned.num_jobs)
        else:
            self._next_prune = self._clock.monotonic() + self._settings.prune_every_s


async def _close(connection: LeadConnection) -> None:
    """Close the lead's session itself: given back to the pool it would go on holding the lock."""
    try:
        await connection.invalidate()
    finally:
        await connection.close()
