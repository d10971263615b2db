"""Drives calls and token streams over asyncio channels. What to send, retry and resume is decided elsewhere.

The rules are in calls, retry and streams; the blocking twin of this file is wire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import grpc.aio

from octavo import calls
from octavo.calls import Call
from octavo.channel import CANCEL_TIMEOUT_S, call_metadata, channel_options
from octavo.clock import Clock
from octavo.errors import CancelledError, OctavoError, UnavailableError, client_closed, from_rpc_error
from octavo.retry import RetryPolicy
from octavo.streams import StreamMachine, StreamView
from octavo.values import Chunk, GenerationResult

T = TypeVar("T")


class AsyncWire:
    """Channels to the gateways, opened in the loop that first uses them; one is current until it fails."""

    def __init__(
        self,
        addresses: Sequence[str],
        api_key: str,
        *,
        timeout_s: float,
        policy: RetryPolicy,
        clock: Clock,
        metadata: Callable[[], Sequence[tuple[str, str]]],
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self.policy = policy
        self.clock = clock
        self.timeout_s = timeout_s
        self._addresses = addresses
        self._api_key = api_key
        self._metadata = metadata
        self._credentials = credentials
        self._current = 0
        self._is_closed = False
        self._channels: dict[str, Any] = {}

    def move(self) -> None:
        """Use the next address from now on."""
        self._current = (self._current + 1) % len(self._addresses)

    def _channel(self) -> Any:
        if self._is_closed:
            raise client_closed()
        address = self._addresses[self._current]
        if address not in self._channels:
            options = channel_options(address)
            self._channels[address] = (
                grpc.aio.insecure_channel(address, options=options)
                if self._credentials is None
                else grpc.aio.secure_channel(address, self._credentials, options=options)
            )
        return self._channels[address]

    async def unary(self, call: Call[T], timeout_s: float | None = None) -> T:
        """Send a call, again where that is safe, within one deadline for all tries."""
        deadline_s = self.clock.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        attempt = 0
        while True:
            attempt += 1
            remaining_s = max(0.001, deadline_s - self.clock.monotonic())
            stub = self._channel().unary_unary(
                call.path,
                request_serializer=type(call.request).SerializeToString,
                response_deserializer=call.response.FromString,
            )
            try:
                return call.parse(await stub(call.request, timeout=remaining_s, metadata=self.metadata()))
            except grpc.RpcError as rpc_error:
                if self._is_closed:
                    raise client_closed() from rpc_error
                error = from_rpc_error(rpc_error)
                delay_s = self.policy.delay_s(
                    error, call.safety, attempt=attempt, remaining_s=remaining_s, jitter=self.clock.jitter()
                )
                if error.status == "UNAVAILABLE":
                    self.move()
                if delay_s is None:
                    raise error from rpc_error
            await self.clock.sleep(delay_s)

    def open(self, call: Call[Any], timeout_s: float | None) -> Any:
        """Start a streaming call; iterate over it for answers and ``cancel`` it."""
        stub = self._channel().unary_stream(
            call.path,
            request_serializer=type(call.request).SerializeToString,
            response_deserializer=call.response.FromString,
        )
        return stub(call.request, timeout=timeout_s, metadata=self.metadata())

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of the next call."""
        return call_metadata(self._api_key, self._metadata())

    async def close(self) -> None:
        """Close all channels; calls in flight end."""
        self._is_closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


class AsyncTokenStream(StreamView):
    """Iterates over the chunks of one generation.

    Nothing is sent before it is iterated, entered as a context, or ``start``-ed. Leaving it early (``break``, an
    exception, cancellation of the task, ``close``) cancels the job, as far as the platform can be reached.
    """

    def __init__(self, wire: AsyncWire, machine: StreamMachine) -> None:
        super().__init__(machine)
        self._wire = wire
        self._call: Any = None
        self._chunks = self._pump()
        self._ahead: list[Chunk] = []
        self._closing = asyncio.Lock()
        self._is_left = False

    async def _pump(self) -> AsyncGenerator[Chunk | None, None]:
        """Yield None when the job is accepted, then its chunks."""
        machine, clock = self._machine, self._wire.clock
        step = machine.start(clock.monotonic())
        while machine.result is None:
            if step.move:
                self._wire.move()
            await clock.sleep(step.delay_s)
            failure: OctavoError = UnavailableError("the stream ended before its job")
            try:
                if self._closed:
                    return
                self._call = self._wire.open(step.call, machine.remaining_s(clock.monotonic()))
                async for answer in self._call:
                    was_known = bool(machine.job_id)
                    chunk = machine.on_event(step.call.parse(answer))
                    if chunk is not None or not was_known:
                        yield chunk
                if machine.result is not None:
                    return
            except grpc.RpcError as rpc_error:
                failure = from_rpc_error(rpc_error)
            except UnavailableError as error:
                failure = error
            except asyncio.CancelledError:
                # grpc.aio raises it for a call that `close` cancelled, too: then this task was not asked to stop.
                if not self._closed or _is_cancelling():
                    raise
            if self._closed:
                return
            self._call.cancel()
            step = machine.on_failure(failure, now_s=clock.monotonic(), jitter=clock.jitter())

    async def start(self) -> Self:
        """Send the request and return when the platform has accepted it: then ``job_id`` is known."""
        try:
            while not self.job_id and not self._closed:
                chunk = await anext(self._chunks, None)
                if chunk is not None:
                    self._ahead.append(chunk)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        try:
            for chunk in self._ahead:
                yield chunk
            self._ahead.clear()
            async for chunk in self._chunks:
                if chunk is not None:
                    yield chunk
        except CancelledError:
            if not self._cancelled:
                raise
        finally:
            await self.close()

    async def wait(self) -> GenerationResult:
        """Read the stream to its end and return the result; raises CancelledError if it was cancelled."""
        async for _ in self:
            pass
        if self.result is None:
            raise CancelledError("the stream was cancelled", job_id=self.job_id)
        return self.result

    async def cancel(self) -> None:
        """Cancel the job and end the stream. May be called from another task than the reader's."""
        self._cancelled = True
        await self.close()

    async def close(self) -> None:
        """End the stream; cancels the job if it has not ended. Never raises for a platform that is out of reach."""
        self._closed = True
        # Held to the end: when one close returns, the cancellation of another has been sent, too.
        async with self._closing:
            if self._call is None or self._is_left:
                return
            self._is_left = True
            self._call.cancel()
            if not self._machine.ended:
                self._cancelled = True
                await self._cancel_job()

    async def _cancel_job(self) -> None:
        with contextlib.suppress(OctavoError):
            find = self._machine.find_job()
            job_id = self.job_id if find is None else (await self._wire.unary(find, CANCEL_TIMEOUT_S)).id
            if job_id:
                await self._wire.unary(calls.cancel_job(job_id), CANCEL_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
