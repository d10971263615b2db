"""What is told of builds: one span for each attempt, in the trace of its request, and how they end. Knows no rows."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import Span, Status, StatusCode, Tracer

from octavo_common.clock import Clock
from octavo_common.jobs.builds import BuildStage
from octavo_common.jobs.model import Claimed
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments
from octavo_common.telemetry.propagation import consume


class Seen:
    """One attempt at one build, as telemetry sees it."""

    def __init__(self, span: Span, instruments: Instruments, clock: Clock) -> None:
        self._span, self._instruments, self._clock = span, instruments, clock
        self._begun_s = clock.monotonic()

    def failed(self, code: str) -> None:
        """It has failed with this code."""
        self._span.set_attribute(names.ERROR_TYPE, code)
        self._span.set_status(Status(StatusCode.ERROR, code))

    def end(self, outcome: str, stages: Sequence[BuildStage]) -> None:
        """It is over: succeeded, failed, cancelled, lost or draining."""
        self._span.set_attribute(names.BUILD_OUTCOME, outcome)
        self._instruments.add(names.BUILDS, 1, {names.OUTCOME: outcome})
        self._instruments.record(names.BUILD_TIME, self._clock.monotonic() - self._begun_s, {names.OUTCOME: outcome})
        for stage in stages:
            event = {
                names.STAGE: stage.stage,
                names.STAGE_TARGET: stage.target,
                names.STAGE_CACHED: stage.cached,
                names.STAGE_SECONDS: stage.seconds,
            }
            self._span.add_event(names.EVENT_STAGE, event)
            if stage.replaced:
                self._instruments.add(names.BUILD_DAMAGED, 1, {names.STAGE: stage.stage})
            if not stage.cached:
                self._instruments.record(names.BUILD_STAGE_TIME, stage.seconds, {names.STAGE: stage.stage})
        self._span.end()


class Meters:
    """Makes them."""

    def __init__(self, tracer: Tracer, instruments: Instruments, clock: Clock, *, process_id: str) -> None:
        self._tracer, self._instruments, self._clock, self._process_id = tracer, instruments, clock, process_id

    def begin(self, claimed: Claimed) -> Seen:
        """A build was taken."""
        job = claimed.job
        attributes = {
            names.JOB_ID: str(job.id),
            names.JOB_FENCE: job.fence,
            names.JOB_TENANT: job.tenant,
            names.JOB_LOSSES: job.total_losses,
            names.WORKER_ID: self._process_id,
            names.BUILD_MODEL: job.model,
            names.BUILD_TARGETS: ",".join(job.payload.get("targets", ())),
        }
        span = consume(self._tracer, names.SPAN_PROCESS, job.traceparent, attributes=attributes)
        return Seen(span, self._instruments, self._clock)
