"""Sends a generation to a client that may go away at any moment: as one JSON answer, or as server-sent events.

Whoever leaves early leaves the generation too, within the event loop's next turns; what that means for the job is the
request's `on_disconnect`. Knows no parameters.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo_common.errors import Internal, OctavoError
from octavo_gateway.api import GenerationApi
from octavo_gateway.openai.answers import token_counts
from octavo_gateway.openai.errors import error_body
from octavo_gateway.openai.parts import StreamOptions
from octavo_gateway.openai.requests import ClientGone
from octavo_gateway.openai.shapes import Gathered, Shape
from octavo_gateway.values import AcceptedJob, Finish, TokenPiece

log = structlog.get_logger(__name__)
T = TypeVar("T")

SILENCE_S = 10.0
_KEEP_ALIVE = b": keep-alive\n\n"
_DONE = b"data: [DONE]\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do the work while the client is there; raises ClientGone, with the work cancelled, when it leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(api: GenerationApi, accepted: AcceptedJob, shape: Shape) -> dict[str, Any]:
    """Read the whole generation. Raises the job's error."""
    answers = [Gathered() for _ in range(shape.num_choices)]
    async with aclosing(api.stream(accepted)) as events:
        async for event in events:
            if isinstance(event, Finish):
                return shape.whole(answers, event)
            answers[event.choice].take(event)
    raise Internal("the stream ended without its last message")


class EventStream(Response):
    """A generation as server-sent events, with a comment after every silence."""

    media_type = "text/event-stream"

    def __init__(
        self,
        api: GenerationApi,
        accepted: AcceptedJob,
        shape: Shape,
        options: StreamOptions,
        *,
        headers: Mapping[str, str],
        silence_s: float = SILENCE_S,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        # Its length is not known.
        del self.headers["content-length"]
        self._api = api
        self._accepted = accepted
        self._shape = shape
        self._options = options
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server to send the answer."""
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            log.info("http.client_gone", job_id=str(self._accepted.job_id))
        finally:
            self._api.leave(self._accepted)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events()) as events, aclosing(with_comments(events, self._silence_s)) as parts:
            async for data in parts:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        for opening in self._shape.opening():
            yield self._event(opening, 0)
        num_tokens = 0
        try:
            async with aclosing(self._api.stream(self._accepted)) as events:
                async for event in events:
                    if isinstance(event, TokenPiece):
                        num_tokens += len(event.token_ids)
                        chunk = self._shape.piece(event)
                        if chunk is not None:
                            yield self._event(chunk, num_tokens)
                        continue
                    for closing in self._shape.closing(event):
                        yield self._event(closing, event.usage.completion_tokens)
                    if self._options.include_usage:
                        yield _encode(self._shape.usage_piece(event))
                    yield _DONE
        except OctavoError as error:
            yield _encode(error_body(error))
        except Exception:
            log.exception("http.stream_failed", job_id=str(self._accepted.job_id))
            yield _encode(error_body(Internal("the stream failed")))

    def _event(self, chunk: dict[str, Any], num_tokens: int) -> bytes:
        if self._options.continuous_usage_stats:
            chunk["usage"] = token_counts(self._accepted.num_prompt_tokens, num_tokens)
        elif self._options.include_usage:
            chunk["usage"] = None
        return _encode(chunk)


async def with_comments(events: AsyncGenerator[bytes, None], silence_s: float) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none came for so long: proxies and clients see that the connection lives."""
    async with _upcoming(events) as upcoming:
        while True:
            done, _ = await asyncio.wait((upcoming.task,), timeout=silence_s)
            if not done:
                yield _KEEP_ALIVE
                continue
            try:
                event = upcoming.task.result()
            except StopAsyncIteration:
                return
            yield event
            upcoming.advance()


class _Upcoming:
    """The task that waits for the next event."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        self._events = events
        self.advance()

    def advance(self) -> None:
        self.task = asyncio.ensure_future(anext(self._events))


@asynccontextmanager
async def _upcoming(events: AsyncGenerator[bytes, None]) -> AsyncIterator[_Upcoming]:
    upcoming = _Upcoming(events)
    try:
        yield upcoming
    finally:
        upcoming.task.cancel()
        await asyncio.gather(upcoming.task, return_exceptions=True)


def _encode(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8") + b"\n\n"
