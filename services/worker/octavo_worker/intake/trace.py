"""The spans of one job at this worker: queue, prefill chunks, one decode span. Knows times, no engine."""

from __future__ import annotations

from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from octavo_common.clock import Clock
from octavo_common.jobs.model import Claimed
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.telemetry import names
from octavo_common.telemetry.propagation import consume
from octavo_worker.engine.types import Delta


class JobTrace:
    """Spans are made after the fact, from the deltas of the steps: nothing here costs a step anything."""

    def __init__(self, tracer: Tracer, clock: Clock, claimed: Claimed, spec: GenerationSpec, *, worker_id: str) -> None:
        job = claimed.job
        self._tracer = tracer
        self._clock = clock
        attributes = {
            names.JOB_ID: str(job.id),
            names.JOB_FENCE: job.fence,
            names.JOB_TENANT: job.tenant,
            names.JOB_LOSSES: job.total_losses,
            names.WORKER_ID: worker_id,
            names.GEN_AI_PROVIDER_NAME: names.PROVIDER,
            names.GEN_AI_OPERATION_NAME: spec.operation,
            names.GEN_AI_REQUEST_MODEL: job.model,
            names.GEN_AI_REQUEST_MAX_TOKENS: spec.max_tokens,
            names.GEN_AI_REQUEST_TEMPERATURE: spec.temperature,
            names.GEN_AI_REQUEST_TOP_P: spec.top_p,
            names.GEN_AI_REQUEST_TOP_K: spec.top_k,
            names.GEN_AI_REQUEST_SEED: spec.seed,
            names.GEN_AI_USAGE_INPUT_TOKENS: len(job.prompt_ids),
        }
        self._root = consume(
            tracer, names.SPAN_PROCESS, job.traceparent, attributes=attributes, start_time_ns=self._now_ns()
        )
        self._context = set_span_in_context(self._root)
        self._queue: Span | None = self._start(names.SPAN_QUEUE, self._now_ns() - round(claimed.wait_s * 1e9))
        self._decode: Span | None = None
        self._num_computed = 0

    def step(self, delta: Delta, step_s: float) -> None:
        """What a step did for this job; it ended now and began step_s ago."""
        now = self._now_ns()
        began = now - round(step_s * 1e9)
        if self._queue is not None and "scheduled" in delta.events:
            self._queue.end(began)
            self._queue = None
            self._num_computed = delta.num_cached
        if delta.num_prompt_tokens:
            self._num_computed += delta.num_prompt_tokens
            chunk = self._start(names.SPAN_PREFILL_CHUNK, began)
            chunk.set_attribute(names.NUM_CHUNK_TOKENS, delta.num_prompt_tokens)
            chunk.set_attribute(names.NUM_COMPUTED_TOKENS, self._num_computed)
            chunk.end(now)
        if delta.tokens and self._decode is None:
            self._decode = self._start(names.SPAN_DECODE, now)
        for event in delta.events:
            if event == "preempted":
                self._num_computed = 0
            if event in (names.EVENT_FIRST_TOKEN, names.EVENT_PREEMPTED, names.EVENT_RESUMED):
                (self._decode or self._root).add_event(event, timestamp=now)

    def end(self, outcome: str, *, num_tokens: int, num_cached: int, error_code: str = "") -> None:
        """The attempt is over: with a finish reason, or cancelled, failed, lost or released."""
        self._root.set_attribute(names.GEN_AI_RESPONSE_FINISH_REASONS, [outcome])
        self._root.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, num_tokens)
        self._root.set_attribute(names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS, num_cached)
        if error_code:
            self._root.set_attribute(names.ERROR_TYPE, error_code)
            self._root.set_status(Status(StatusCode.ERROR, error_code))
        for span in (self._queue, self._decode, self._root):
            if span is not None:
                span.end(self._now_ns())
        self._queue = self._decode = None

    def _start(self, name: str, start_ns: int) -> Span:
        return self._tracer.start_span(name, context=self._context, start_time=start_ns)

    def _now_ns(self) -> int:
        return round(self._clock.time() * 1e9)
