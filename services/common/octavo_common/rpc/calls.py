"""What happens around every call of every service: decoding, counting, deadlines, and one way to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog

from octavo_common.clock import Clock
from octavo_common.errors import Internal, InvalidArgument, OctavoError, Unavailable
from octavo_common.ids import new_process_id
from octavo_common.rpc import deadline
from octavo_common.rpc.auth import refusing
from octavo_common.rpc.errors import abort
from octavo_common.rpc.handlers import Context, Continuation, Handler, Manager, around, is_infrastructure

log = structlog.get_logger(__name__)


class InFlight:
    """Counts the calls being served. grpc's own `stop(grace)` waits its whole grace when a handler aborts late."""

    def __init__(self) -> None:
        self.count = 0
        # While True new calls are refused with UNAVAILABLE, so that clients go to another process.
        self.refusing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self.count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if self.count == 0:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is served. False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class CallInterceptor(grpc.aio.ServerInterceptor):
    """The outermost interceptor: everything that a call raises becomes a status here, and nothing leaks."""

    def __init__(self, in_flight: InFlight, clock: Clock) -> None:
        self._in_flight = in_flight
        self._clock = clock

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or is_infrastructure(method):
            return handler
        if self._in_flight.refusing:
            return refusing(
                handler,
                Unavailable("this process is about to end", code="DRAINING", hint="try again", retry_after_s=0.1),
            )
        return around(handler, self._manager(method), _decoder(handler))

    def _manager(self, method: str) -> Manager:
        @asynccontextmanager
        async def served(context: Context) -> AsyncIterator[None]:
            with self._in_flight:
                deadline.enter(context.time_remaining(), self._clock)  # pyright: ignore[reportAttributeAccessIssue] - missing in the stubs
                try:
                    yield
                except OctavoError as error:
                    await abort(context, error)
                except grpc.aio.AbortError:
                    raise
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise
                    # Not this call was cancelled but something that it awaited. grpc would answer nothing at all.
                    log.warning("rpc.interrupted", method=method)
                    await abort(context, Unavailable("the call was interrupted", code="INTERRUPTED", hint="try again"))
                except Exception:
                    error_id = new_process_id().hex[:12]
                    log.exception("rpc.unhandled", method=method, error_id=error_id)
                    await abort(
                        context,
                        Internal("an internal error", hint=f"the server's log has it under error_id {error_id}"),
                    )

        return served


def _decoder(handler: Handler) -> Callable[[Any], Any]:
    """Decodes requests inside the call: a failure inside grpc itself would be INTERNAL or worse."""
    deserialize = handler.request_deserializer

    def one(raw: bytes) -> Any:
        try:
            return deserialize(raw) if deserialize else raw
        except Exception as error:
            raise InvalidArgument(
                "the request is not a valid message of this method",
                code="MALFORMED_MESSAGE",
                hint="check the version of the protos, and that all strings are valid UTF-8",
            ) from error

    async def many(raw: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for message in raw:
            yield one(message)

    return many if handler.request_streaming else one
