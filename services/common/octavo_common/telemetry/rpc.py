"""Spans and durations of gRPC calls, served and made. Knows no service.

Own, because the contributed interceptors break coroutine handlers and leak the spans of cancelled calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from opentelemetry import context as otel_context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from octavo_common.clock import Clock, SystemClock
from octavo_common.errors import OctavoError
from octavo_common.rpc.channel import Metadata
from octavo_common.rpc.handlers import Context, Continuation, Handler, Manager, around, is_infrastructure
from octavo_common.telemetry import names
from octavo_common.telemetry.instruments import Instruments
from octavo_common.telemetry.propagation import TRACEPARENT, extract, inject

# Codes that say the server is at fault; others are the caller's business.
_SERVER_FAULTS = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """One SERVER span per call, child of the caller's; it is the current span while the call is served."""

    def __init__(self, tracer: Tracer, instruments: Instruments, clock: Clock | None = None) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._clock = clock or SystemClock()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None or is_infrastructure(handler_call_details.method):
            return handler
        sent = dict(handler_call_details.invocation_metadata or ())
        traceparent = sent.get(TRACEPARENT, "")
        return around(handler, self._manager(handler_call_details.method, str(traceparent)))

    def _manager(self, method: str, traceparent: str) -> Manager:
        @asynccontextmanager
        async def traced(context: Context) -> AsyncIterator[None]:
            started = self._clock.monotonic()
            parent = extract(traceparent)
            span = self._tracer.start_span(_name(method), parent, SpanKind.SERVER, _attributes(method))
            # Never detached: each call is served by a task of its own. A generator's `finally` may run in another one.
            otel_context.attach(set_span_in_context(span, parent))
            code = grpc.StatusCode.CANCELLED
            try:
                yield
                code = grpc.StatusCode.OK
            except OctavoError as error:
                code = _BY_NUMBER[error.status.grpc_code]
                span.set_attribute(names.ERROR_TYPE, error.code)
                raise
            except grpc.aio.AbortError:
                code = _by_number(context.code())
                raise
            except Exception:
                code = grpc.StatusCode.INTERNAL
                raise
            finally:
                _finish(span, code, SpanKind.SERVER)
                labels = {names.METHOD: method, names.CODE: code.name}
                self._instruments.record(names.RPC_SERVER_DURATION, self._clock.monotonic() - started, labels)

        return traced


class TraceObserver:
    """One CLIENT span per call made over an internal channel, and the trace context to send along."""

    def __init__(self, tracer: Tracer, instruments: Instruments, clock: Clock | None = None) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._clock = clock or SystemClock()

    def started(self, method: str) -> tuple[Metadata, Callable[[grpc.aio.Call], None]]:
        """Start the span; the returned function ends it when the call is done, however it ends."""
        started = self._clock.monotonic()
        span = self._tracer.start_span(_name(method), None, SpanKind.CLIENT, _attributes(method))

        def done(call: Any) -> None:
            code = _code_of(call)
            _finish(span, code, SpanKind.CLIENT)
            labels = {names.METHOD: method, names.CODE: code.name}
            self._instruments.record(names.RPC_CLIENT_DURATION, self._clock.monotonic() - started, labels)

        return ((TRACEPARENT, inject(set_span_in_context(span))),), done


def _name(method: str) -> str:
    return method.lstrip("/")


def _attributes(method: str) -> dict[str, str]:
    service, _, name = method.lstrip("/").partition("/")
    return {names.RPC_SYSTEM: "grpc", names.RPC_SERVICE: service, names.RPC_METHOD: name}


def _finish(span: Span, code: grpc.StatusCode, kind: SpanKind) -> None:
    span.set_attribute(names.RPC_GRPC_STATUS_CODE, code.value[0])
    # By the conventions a client span fails on every status that is not OK.
    if code in _SERVER_FAULTS or (kind is SpanKind.CLIENT and code is not grpc.StatusCode.OK):
        span.set_status(Status(StatusCode.ERROR, code.name))
    span.end()


def _code_of(call: Any) -> grpc.StatusCode:
    """The status of a call that is done, without waiting for it."""
    # A coroutine that has nothing to wait for any more: one step brings its result. A task would outlive the loop.
    code = call.code()
    try:
        code.send(None)
    except StopIteration as result:
        return _by_number(result.value)
    code.close()
    return grpc.StatusCode.UNKNOWN


def _by_number(code: Any) -> grpc.StatusCode:
    if isinstance(code, grpc.StatusCode):
        return code
    return _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
