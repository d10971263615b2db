"""What is told about a request: a span by the GenAI conventions, and times as this gateway sees them.

Content never goes in here. Nothing is global: the tracer and the instruments are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from octavo_common.clock import Clock
from octavo_common.jobs.model import Job
from octavo_common.jobs.spec import GenerationSpec, UsageRecord
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments
from octavo_common.telemetry.propagation import extract, inject

DISCONNECTED = "CLIENT_DISCONNECTED"


class Observation:
    """One request from its acceptance to the end of its stream. This base tells nobody."""

    def accepted(self, job: Job, *, created: bool) -> None:
        """It is a job now."""

    def first_token(self) -> None:
        """A token is about to be sent; only the first time counts."""

    def finished(self, finish_reason: str, usage: UsageRecord) -> None:
        """The stream came to a good end."""

    def failed(self, code: str) -> None:
        """It ended with an error. After the first end nothing is told any more."""


class Observer:
    """Makes observations."""

    def __init__(self, *, tracer: Tracer, instruments: Instruments, clock: Clock) -> None:
        self.tracer = tracer
        self.instruments = instruments
        self.clock = clock

    def begin(self, operation: str, model: str, *, traceparent: str | None, streaming: bool) -> RequestObservation:
        """Start the request's span, under the given parent or the current span."""
        span = self.tracer.start_span(
            f"{operation} {model}" if model else operation,
            context=extract(traceparent) if traceparent else None,
            kind=SpanKind.INTERNAL,
            attributes={
                names.GEN_AI_OPERATION_NAME: operation,
                names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
                names.GEN_AI_REQUEST_MODEL: model,
                names.GEN_AI_REQUEST_STREAM: streaming,
            },
        )
        return RequestObservation(self, span, operation, model)

    @contextmanager
    def sending(self) -> Iterator[str]:
        """The PRODUCER span around a commit, within the current span; yields the traceparent for the row."""
        with _sending(self.tracer, None) as (traceparent, _):
            yield traceparent

    def accepted_build(self) -> None:
        """A build is a job now. Its model is a path, and no label."""
        self.instruments.add(names.JOBS_ACCEPTED)

    def resumed(self) -> None:
        """A stream goes on at another worker."""
        self.instruments.add(names.STREAMS_RESUMED)


class RequestObservation(Observation):
    """Feeds a span and the histograms."""

    def __init__(self, observer: Observer, span: Span, operation: str, model: str) -> None:
        self._observer = observer
        self._span = span
        self._operation = operation
        self._model = model
        self._started_s = observer.clock.monotonic()
        self._first_token_s: float | None = None
        self._ended = False
        # What the row carries, and since when.
        self._sent, self._sent_s = Context(), 0.0
        # Its tokens come one after the other as they are chosen: only then is there a time for each.
        self._is_single = False

    @contextmanager
    def sending(self) -> Iterator[str]:
        """The PRODUCER span around the commit; yields the traceparent for the row."""
        with _sending(self._observer.tracer, set_span_in_context(self._span, Context())) as (traceparent, sent):
            self._sent, self._sent_s = sent, self._observer.clock.time()
            yield traceparent

    def placed(self, job: Job) -> None:
        """It got its worker with its acceptance: what the scheduler tells of other jobs."""
        self._observer.instruments.add(names.JOBS_ASSIGNED)
        attributes = {
            names.JOB_ID: str(job.id),
            names.JOB_FENCE: job.fence,
            names.WORKER_ID: str(job.worker_id),
        }
        began_ns = int(self._sent_s * 1e9)
        span = self._observer.tracer.start_span(
            names.SPAN_PLACE, self._sent, SpanKind.INTERNAL, attributes, start_time=began_ns
        )
        span.end()

    def accepted(self, job: Job, *, created: bool) -> None:
        """It is a job now."""
        spec = GenerationSpec.from_json(dict(job.payload))
        self._model = job.model
        self._is_single = not spec.restarts
        self._span.update_name(f"{self._operation} {job.model}")
        attributes: dict[str, AttributeValue] = {
            names.GEN_AI_REQUEST_MODEL: job.model,
            names.GEN_AI_REQUEST_MAX_TOKENS: spec.max_tokens,
            names.GEN_AI_REQUEST_TEMPERATURE: spec.temperature,
            names.GEN_AI_REQUEST_TOP_P: spec.top_p,
            names.GEN_AI_REQUEST_TOP_K: spec.top_k,
            names.GEN_AI_REQUEST_SEED: spec.seed,
            names.GEN_AI_RESPONSE_ID: str(job.id),
            names.JOB_ID: str(job.id),
            names.JOB_TENANT: job.tenant,
        }
        self._span.set_attributes(attributes)
        if created:
            self._observer.instruments.add(names.JOBS_ACCEPTED, 1, {names.MODEL_NAME: job.model})

    def refused(self, code: str) -> None:
        """It did not become a job."""
        self._observer.instruments.add(names.JOBS_REFUSED, 1, {names.CODE: code})
        self._end(code)

    def first_token(self) -> None:
        """A token is about to be sent; only the first time counts."""
        if self._first_token_s is None:
            self._first_token_s = self._observer.clock.monotonic()
            waited_s = self._first_token_s - self._started_s
            self._span.set_attribute(names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, waited_s)
            self._observer.instruments.record(names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, waited_s, self._labels())

    def finished(self, finish_reason: str, usage: UsageRecord) -> None:
        """The stream came to a good end."""
        attributes: dict[str, AttributeValue] = {
            names.GEN_AI_RESPONSE_MODEL: self._model,
            names.GEN_AI_RESPONSE_FINISH_REASONS: [finish_reason],
            names.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.completion_tokens,
            names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_tokens,
        }
        self._span.set_attributes(attributes)
        if self._is_single and self._first_token_s is not None and usage.completion_tokens > 1:
            per_token_s = (self._observer.clock.monotonic() - self._first_token_s) / (usage.completion_tokens - 1)
            self._observer.instruments.record(names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN, per_token_s, self._labels())
        self._end(None)

    def committed(self) -> None:
        """A submission without a stream: the request ends with its acceptance; its job has spans of its own."""
        if not self._ended:
            self._ended = True
            self._span.end()

    def failed(self, code: str) -> None:
        """It ended with an error. After the first end nothing is told any more."""
        self._end(code)

    def _end(self, code: str | None) -> None:
        if self._ended:
            return
        self._ended = True
        labels = self._labels()
        if code is not None:
            labels[names.ERROR_TYPE] = code
            self._span.set_attribute(names.ERROR_TYPE, code)
            self._span.set_status(Status(StatusCode.ERROR, code))
        self._span.end()
        took_s = self._observer.clock.monotonic() - self._started_s
        self._observer.instruments.record(names.GEN_AI_SERVER_REQUEST_DURATION, took_s, labels)

    def _labels(self) -> dict[str, str]:
        return {
            names.GEN_AI_OPERATION_NAME: self._operation,
            names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
            names.GEN_AI_REQUEST_MODEL: self._model,
        }


@contextmanager
def _sending(tracer: Tracer, parent: Context | None) -> Iterator[tuple[str, Context]]:
    span = tracer.start_span(
        names.SPAN_SEND,
        context=parent,
        kind=SpanKind.PRODUCER,
        attributes={
            names.MESSAGING_SYSTEM: names.PROVIDER,
            names.MESSAGING_OPERATION_NAME: "send",
            names.MESSAGING_DESTINATION_NAME: "jobs",
        },
    )
    sent = set_span_in_context(span, Context())
    try:
        yield inject(sent), sent
    finally:
        span.end()
