from datetime import UTC, datetime
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from octavo_common.jobs.model import Claimed, Job, JobState
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.telemetry import names
from octavo_worker.engine.types import Delta, SeqId
from octavo_worker.intake.trace import JobTrace

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPEC = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=8)


class Clock:
    now = 1000.0

    def time(self):
        return self.now

    def monotonic(self):
        return self.now


def claimed_job() -> Claimed:
    values = dict.fromkeys(Job.__dataclass_fields__)
    values.update(
        id=uuid4(),
        fence=3,
        tenant="acme",
        model="tiny",
        total_losses=1,
        state=JobState.RUNNING,
        prompt_ids=(1, 2, 3),
        traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01",
        created_at=datetime.fromtimestamp(0, UTC),
    )
    return Claimed(job=Job(**values), deadline_in_s=None, age_s=60.0, wait_s=2.0)


@pytest.fixture
def spans():
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    clock = Clock()
    trace = JobTrace(provider.get_tracer("test"), clock, claimed_job(), SPEC, worker_id="w")

    def ended() -> dict:
        return {span.name: span for span in exporter.get_finished_spans()}

    yield trace, clock, ended
    provider.shutdown()


def delta(*events, tokens=(), num_prompt_tokens=0, num_cached=0) -> Delta:
    return Delta(
        id=SeqId("r", 0), events=events, tokens=tokens, num_prompt_tokens=num_prompt_tokens, num_cached=num_cached
    )


def seconds(span) -> tuple[float, float]:
    return span.start_time / 1e9, span.end_time / 1e9


def test_a_job_is_one_trace_from_the_row_to_its_last_token(spans):
    trace, clock, ended = spans
    clock.now = 1001.0
    trace.step(delta("scheduled", num_prompt_tokens=4, num_cached=16), 0.5)
    clock.now = 1002.0
    trace.step(delta("first_token", tokens=(7,), num_prompt_tokens=3), 0.25)
    clock.now = 1003.0
    trace.step(delta("preempted"), 0.1)
    trace.step(delta("resumed", num_prompt_tokens=9), 0.1)
    clock.now = 1004.0
    trace.end("stop", num_tokens=5, num_cached=16)
    found = ended()
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACE_ID}
    root = found[names.SPAN_PROCESS]
    assert [f"{link.context.trace_id:032x}" for link in root.links] == [TRACE_ID]
    assert all(span.parent.span_id == root.context.span_id for span in found.values() if span is not root)
    # It waited since two seconds before the claim at 1000, whenever it was accepted.
    assert seconds(found[names.SPAN_QUEUE]) == (998.0, 1000.5)
    assert seconds(found[names.SPAN_DECODE]) == (1002.0, 1004.0)
    assert [event.name for event in found[names.SPAN_DECODE].events] == ["first_token", "preempted", "resumed"]
    assert root.attributes[names.GEN_AI_USAGE_OUTPUT_TOKENS] == 5


def test_each_step_of_a_prompt_is_a_chunk_that_says_how_far_it_came(spans):
    trace, clock, ended = spans
    chunks = []
    for event, size in ((("scheduled",), 4), ((), 3)):
        clock.now += 1
        trace.step(delta(*event, num_prompt_tokens=size, num_cached=16), 0.5)
        span = ended()[names.SPAN_PREFILL_CHUNK]
        chunks.append((span.attributes[names.NUM_CHUNK_TOKENS], span.attributes[names.NUM_COMPUTED_TOKENS]))
    assert chunks == [(4, 20), (3, 23)]
    trace.end("cancelled", num_tokens=0, num_cached=16)


def test_a_failure_is_an_error_with_its_code_and_leaves_no_span_open(spans):
    trace, _, ended = spans
    trace.end("failed", num_tokens=0, num_cached=0, error_code="ENGINE_FAILED")
    found = ended()
    assert set(found) == {names.SPAN_PROCESS, names.SPAN_QUEUE}
    assert found[names.SPAN_PROCESS].attributes[names.ERROR_TYPE] == "ENGINE_FAILED"
    assert not found[names.SPAN_PROCESS].status.is_ok
