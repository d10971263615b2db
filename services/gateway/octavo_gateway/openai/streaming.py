"""Sends what a request generates to a client that may go away at any moment: as JSON, or as server-sent events.

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
from octavo_gateway.openai.answers import token_counts
from octavo_gateway.openai.batches import Batch
from octavo_gateway.openai.errors import error_body
from octavo_gateway.openai.naming import renamed
from octavo_gateway.openai.parts import StreamOptions
from octavo_gateway.openai.requests import ClientGone
from octavo_gateway.openai.shapes import Gathered, Shape
from octavo_gateway.values import Finish, TokenPiece

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


async def collect(batch: Batch, shape: Shape) -> dict[str, Any]:
    """Read the whole generation. Raises the first error of its jobs."""
    answers = [Gathered() for _ in range(shape.num_choices)]
    finishes: dict[int, Finish] = {}
    async with aclosing(batch.events()) as events:
        async for prompt, event in events:
            if isinstance(event, Finish):
                finishes[prompt] = event
            else:
                answers[shape.index(prompt, event.choice)].take(event)
    return shape.whole(answers, [finishes[prompt] for prompt in sorted(finishes)])


class EventStream(Response):
    """A generation as server-sent events, with a comment after every silence."""

    media_type = "text/event-stream"

    def __init__(
        self,
        batch: Batch,
        shape: Shape,
        options: StreamOptions,
        *,
        headers: Mapping[str, str],
        names: Mapping[str, str],
        silence_s: float = SILENCE_S,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        # Its length is not known.
        del self.headers["content-length"]
        self._batch = batch
        self._shape = shape
        self._options = options
        self._names = names
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server to send the answer."""
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            log.info("http.client_gone", job_id=self._batch.names)
        finally:
            self._batch.leave()

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
        finishes: dict[int, Finish] = {}
        try:
            async with aclosing(self._batch.events()) as events:
                async for prompt, event in events:
                    if isinstance(event, TokenPiece):
                        num_tokens += len(event.token_ids)
                        chunk = self._shape.piece(event, prompt)
                        if chunk is not None:
                            yield self._event(chunk, num_tokens)
                        continue
                    finishes[prompt] = event
                    for closing in self._shape.closing(event, prompt):
                        yield self._event(closing, max(num_tokens, _num_counted(finishes)))
            if self._options.include_usage:
                yield _encode(self._shape.usage_piece([finishes[prompt] for prompt in sorted(finishes)]))
            yield _DONE
        except OctavoError as error:
            yield _encode(error_body(renamed(error, self._names)))
        except Exception:
            log.exception("http.stream_failed", job_id=self._batch.names)
            yield _encode(error_body(Internal("the stream failed")))

    def _event(self, chunk: dict[str, Any], num_tokens: int) -> bytes:
        if self._options.continuous_usage_stats:
            chunk["usage"] = token_counts(self._shape.num_prompt_tokens, num_tokens)
        elif self._options.include_usage:
            chunk["usage"] = None
        return _encode(chunk)


def _num_counted(finishes: Mapping[int, Finish]) -> int:
    """Tokens of the answers that have ended, also of those that are not told."""
    return sum(finish.usage.completion_tokens for finish in finishes.values())


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
