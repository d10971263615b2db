"""The trace context as text."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from octavo_common.telemetry import propagation

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def tracer():
    provider = TracerProvider(shutdown_on_exit=False)
    yield provider.get_tracer("test")
    provider.shutdown()


def test_without_a_span_there_is_nothing_to_send() -> None:
    assert propagation.inject() == ""


def test_what_is_injected_is_extracted(tracer) -> None:
    with tracer.start_as_current_span("x") as span:
        text = propagation.inject()
    assert propagation.trace_id(text) == trace.format_trace_id(span.get_span_context().trace_id)
    assert (
        trace.get_current_span(propagation.extract(text)).get_span_context().span_id == span.get_span_context().span_id
    )


@pytest.mark.parametrize(
    "text", ["", "nonsense", PARENT[:-1], PARENT.replace("0af7", "xxxx"), "00-" + "0" * 32 + "-b7ad6b7169203331-01"]
)
def test_a_malformed_parent_is_none(tracer, text: str) -> None:
    assert propagation.trace_id(text) == ""
    span = propagation.consume(tracer, "x", text)
    assert span.parent is None
    assert span.links == ()
    span.end()


def test_the_current_span_is_no_parent_for_work_from_the_row(tracer) -> None:
    with tracer.start_as_current_span("loop"):
        orphan = propagation.consume(tracer, "x", "")
        child = propagation.consume(tracer, "x", PARENT, attributes={"a": 1})
    assert orphan.parent is None
    assert trace.format_span_id(child.parent.span_id) == "b7ad6b7169203331"
    assert [link.context.span_id for link in child.links] == [child.parent.span_id]
    assert child.kind is trace.SpanKind.CONSUMER
    orphan.end()
    child.end()
