"""One trace leads from the caller through the request's span into the row, and the figures are on /metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fakes.gateway_world import World
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id

from octavo.v1 import gateway_pb2
from octavo_common.jobs.spec import UsageRecord
from octavo_gateway.observe import Observer

pytestmark = pytest.mark.db
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_the_callers_trace_goes_through_the_request_into_the_row(world: World) -> None:
    exporter = InMemorySpanExporter()
    world.telemetry._tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    gateway, worker = await world.gateway(), await world.worker()
    client = world.client(gateway)
    client.metadata = (*client.metadata, ("traceparent", f"00-{TRACE}-{PARENT}-01"))
    message = gateway_pb2.ChatInput(messages=[gateway_pb2.ChatMessage(role="user", content="a secret")])
    stream = client.generate(chat=message)
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 1)
    await stream.tokens(1)
    await worker.finish(job_id)
    await stream.rest()
    async with asyncio.timeout(5):
        while len([s for s in exporter.get_finished_spans() if s.kind is SpanKind.SERVER]) < 1:
            await asyncio.sleep(0.01)

    spans = {span.name: span for span in exporter.get_finished_spans()}
    server, request, send = (spans[n] for n in ("octavo.v1.GenerationService/Generate", "chat tiny", "send jobs"))
    assert format_span_id(server.parent.span_id) == PARENT
    assert request.parent.span_id == server.context.span_id
    assert send.parent.span_id == request.context.span_id
    assert send.kind is SpanKind.PRODUCER
    assert {format_trace_id(s.context.trace_id) for s in (server, request, send)} == {TRACE}
    row = await world.job(job_id)
    assert row.traceparent.split("-")[1:3] == [TRACE, format_span_id(send.context.span_id)]
    assert request.attributes["gen_ai.operation.name"] == "chat"
    assert request.attributes["gen_ai.usage.output_tokens"] == 10
    assert request.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert "secret" not in str([(s.name, dict(s.attributes)) for s in exporter.get_finished_spans()])

    text = world.telemetry.prometheus_text().decode()
    for name in ("octavo_jobs_accepted", "gen_ai_server_request_duration", "gen_ai_server_time_to_first_token"):
        assert name in text


@pytest.mark.parametrize(
    ("asked", "num_told"), [({}, 1), ({"n": 2, "best_of": 2}, 0), ({"best_of": 2}, 0), ({"beam_width": 1}, 0)]
)
async def test_the_time_of_an_output_token_is_told_where_tokens_come_one_by_one(
    world: World, asked: dict[str, Any], num_told: int
) -> None:
    gateway = await world.gateway()
    await world.worker()
    row = await world.job(await world.client(gateway).generate(prompt="a").accepted())
    observer = Observer(tracer=world.telemetry.tracer, instruments=world.telemetry.instruments, clock=world.clock)
    num_before = num_times_told(world)
    request = observer.begin("text_completion", "tiny", traceparent=None, streaming=True)
    request.accepted(replace(row, payload={**row.payload, **asked}), created=False)
    request.first_token()
    request.finished("stop", UsageRecord(prompt_tokens=1, completion_tokens=5))
    assert num_times_told(world) - num_before == num_told


def num_times_told(world: World) -> float:
    lines = world.telemetry.prometheus_text().decode().splitlines()
    counts = [line for line in lines if line.startswith("gen_ai_server_time_per_output_token_seconds_count")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counts)
