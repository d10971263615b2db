"""The jobs of one request, one for each of its prompts: accepted together, read together, left together.

Knows neither HTTP nor what an answer looks like.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

from octavo_common.errors import Internal, OctavoError
from octavo_common.jobs.model import Principal
from octavo_gateway.api import GenerationApi
from octavo_gateway.requests import ValidRequest
from octavo_gateway.values import AcceptedJob, Finish, TokenPiece

# Prompts that are tokenised and inserted at the same time.
NUM_AT_ONCE = 8
# Pieces that wait for a client that reads slowly.
MAX_PIECES = 64

# Number of the prompt, from 0, and what came of its job.
Event = tuple[int, TokenPiece | Finish]


class Batch:
    """Accepted jobs, in the order of their prompts."""

    def __init__(self, api: GenerationApi, jobs: Sequence[AcceptedJob]) -> None:
        self._api = api
        self.jobs: Sequence[AcceptedJob] = tuple(jobs)

    @property
    def names(self) -> str:
        """The jobs' ids."""
        return ", ".join(str(job.job_id) for job in self.jobs)

    def leave(self) -> None:
        """Read no more of any of them: see GenerationApi.leave."""
        for job in self.jobs:
            self._api.leave(job)

    async def events(self) -> AsyncGenerator[Event, None]:
        """What comes of all jobs, as it comes; ends when all have. Raises the error of the first that fails."""
        if len(self.jobs) > 1:
            async with aclosing(self._merged()) as events:
                async for event in events:
                    yield event
            return
        finished = False
        async with aclosing(self._api.stream(self.jobs[0])) as pieces:
            async for piece in pieces:
                finished = isinstance(piece, Finish)
                yield 0, piece
        if not finished:
            raise Internal("the stream ended without its last message")

    async def _merged(self) -> AsyncGenerator[Event, None]:
        queue: asyncio.Queue[tuple[int, TokenPiece | Finish | Exception]] = asyncio.Queue(MAX_PIECES)
        readers = [asyncio.create_task(self._read(number, queue)) for number in range(len(self.jobs))]
        num_left = len(readers)
        try:
            while num_left:
                number, event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                num_left -= isinstance(event, Finish)
                yield number, event
        finally:
            await _end(readers)

    async def _read(self, number: int, queue: asyncio.Queue[tuple[int, TokenPiece | Finish | Exception]]) -> None:
        try:
            async with aclosing(self._api.stream(self.jobs[number])) as pieces:
                async for piece in pieces:
                    await queue.put((number, piece))
                    if isinstance(piece, Finish):
                        return
            raise Internal("the stream ended without its last message")
        except Exception as error:  # the top of a task: its reader raises it
            await queue.put((number, error))


async def accept_all(
    api: GenerationApi, principal: Principal, requests: Sequence[ValidRequest], *, traceparent: str | None
) -> Batch:
    """Commit all requests as jobs, or none: what was committed before one is refused is cancelled."""
    if len(requests) == 1:
        return Batch(api, [await api.accept(principal, requests[0], traceparent=traceparent)])
    accepted: dict[int, AcceptedJob] = {}
    gate = asyncio.Semaphore(NUM_AT_ONCE)

    async def accept(number: int) -> None:
        async with gate:
            with numbered(number, len(requests)):
                accepted[number] = await api.accept(principal, requests[number], traceparent=traceparent)

    tasks = [asyncio.create_task(accept(number)) for number in range(len(requests))]
    try:
        await asyncio.gather(*tasks)
    except BaseException as error:
        await _end(tasks)
        for job in accepted.values():
            api.leave(job)
            if job.created and isinstance(error, OctavoError):
                # Also those that were to go on without their client: nobody is told of them.
                with contextlib.suppress(OctavoError):
                    await api.cancel(principal, str(job.job_id))
        raise
    return Batch(api, [accepted[number] for number in range(len(requests))])


@contextlib.contextmanager
def numbered(number: int, num_prompts: int) -> Iterator[None]:
    """Errors about a prompt that is one of several say which."""
    try:
        yield
    except OctavoError as error:
        if num_prompts > 1 and error.param in ("prompt", "token_ids"):
            error.param = f"{error.param}[{number}]"
        raise


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
