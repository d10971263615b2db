"""Carries the trace over calls and through the job row, as W3C traceparent. Knows neither gRPC nor SQL."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

TRACEPARENT = "traceparent"
_w3c = TraceContextTextMapPropagator()


def inject(context: Context | None = None) -> str:
    """The traceparent of the current span, or of a context's; empty when there is none."""
    carrier: dict[str, str] = {}
    _w3c.inject(carrier, context)
    return carrier.get(TRACEPARENT, "")


def extract(traceparent: str) -> Context:
    """A context whose current span is the one named; an empty one when the text names none."""
    # An empty context as the base: else the caller's current span would become the parent.
    return _w3c.extract({TRACEPARENT: traceparent}, Context())


def trace_id(traceparent: str) -> str:
    """The trace id in hex; empty when the text names none."""
    span_context = trace.get_current_span(extract(traceparent)).get_span_context()
    return trace.format_trace_id(span_context.trace_id) if span_context.is_valid else ""


def consume(
    tracer: Tracer,
    name: str,
    traceparent: str,
    *,
    kind: SpanKind = SpanKind.CONSUMER,
    attributes: Mapping[str, AttributeValue] | None = None,
    start_time_ns: int | None = None,
) -> Span:
    """Start a span for work that came through the job row: the span in the row is its parent and its link.

    The caller ends it. Each attempt of a job has its own, all in the trace of the request.
    """
    context = extract(traceparent)
    sent = trace.get_current_span(context).get_span_context()
    return tracer.start_span(
        name,
        context=context,
        kind=kind,
        attributes=attributes,
        links=[Link(sent)] if sent.is_valid else [],
        start_time=start_time_ns,
    )
