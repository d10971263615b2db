"""Puts a job's placement into the trace of its request. The loop calls it when a round is over, so it delays nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from opentelemetry.trace import SpanKind, Tracer

from octavo_common.jobs.model import Assignment, QueuedJob
from octavo_common.telemetry import names
from octavo_common.telemetry.propagation import extract

Placed = Iterable[tuple[QueuedJob, Assignment]]


class Spans(Protocol):
    """What the loop tells."""

    def placed(self, placed: Placed, *, started_s: float, ended_s: float) -> None:
        """These assignments took effect in a round between two moments (seconds since the epoch)."""
        ...


class NoSpans:
    """For when nobody collects traces."""

    def placed(self, placed: Placed, *, started_s: float, ended_s: float) -> None:
        """Nothing."""


class PlacementSpans:
    """Makes a span for each placed job that has a trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def placed(self, placed: Placed, *, started_s: float, ended_s: float) -> None:
        """Make the spans; exporting them is the tracer's business."""
        for job, assignment in placed:
            if not job.traceparent:
                continue
            span = self._tracer.start_span(
                names.SPAN_PLACE,
                extract(job.traceparent),
                SpanKind.INTERNAL,
                {
                    names.JOB_ID: str(job.id),
                    names.JOB_FENCE: assignment.fence + 1,
                    names.WORKER_ID: str(assignment.worker_id),
                },
                start_time=int(started_s * 1e9),
            )
            span.end(int(ended_s * 1e9))
