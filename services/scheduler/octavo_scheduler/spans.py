"""Puts a job's placement into the trace of its request. Off the path of placement: the spans are made afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

import structlog
from opentelemetry.trace import SpanKind, Tracer

from octavo_common.errors import NotFound, Unavailable
from octavo_common.jobs.model import Assignment
from octavo_common.store import JobStore
from octavo_common.telemetry import names
from octavo_common.telemetry.propagation import extract

log = structlog.get_logger(__name__)


class Spans(Protocol):
    """What the loop tells."""

    def placed(self, assignments: Collection[Assignment], *, started_s: float, ended_s: float) -> None:
        """These assignments took effect in a round between two moments (seconds since the epoch)."""
        ...

    async def close(self) -> None:
        """Finish what was begun."""
        ...


class NoSpans:
    """For when nobody collects traces."""

    def placed(self, assignments: Collection[Assignment], *, started_s: float, ended_s: float) -> None:
        """Nothing."""

    async def close(self) -> None:
        """Nothing."""


class PlacementSpans:
    """Reads the trace context of the placed jobs and makes a span for each."""

    def __init__(self, tracer: Tracer, jobs: JobStore) -> None:
        self._tracer = tracer
        self._jobs = jobs
        self._tasks: set[asyncio.Task[None]] = set()

    def placed(self, assignments: Collection[Assignment], *, started_s: float, ended_s: float) -> None:
        """Make the spans in a task of their own."""
        task = asyncio.create_task(self._make(assignments, int(started_s * 1e9), int(ended_s * 1e9)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for the spans that are being made."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _make(self, assignments: Collection[Assignment], started_ns: int, ended_ns: int) -> None:
        for assignment in assignments:
            try:
                job = await self._jobs.get(assignment.job_id, tenant=None)
            except (NotFound, Unavailable) as error:
                log.debug("span.dropped", job_id=str(assignment.job_id), error=error.message)
                continue
            if not job.traceparent:
                continue
            span = self._tracer.start_span(
                names.SPAN_PLACE,
                extract(job.traceparent),
                SpanKind.INTERNAL,
                {
                    names.JOB_ID: str(assignment.job_id),
                    names.JOB_FENCE: assignment.fence + 1,
                    names.WORKER_ID: str(assignment.worker_id),
                },
                start_time=started_ns,
            )
            span.end(ended_ns)
