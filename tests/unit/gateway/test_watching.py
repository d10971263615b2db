"""Who watches a job can be cancelled at any time, and is told again after whatever ended the listening."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from octavo_common.clock import SystemClock
from octavo_common.jobs.model import OwnedJob
from octavo_gateway.watching import Watches


class Waits:
    """A listener that is never told anything."""

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.Event().wait()
        return False


class Breaks:
    """A listener with a fault of ours."""

    async def wait(self, timeout_s: float) -> bool:
        raise RuntimeError("a fault of ours")


async def no_rows(job_ids: Collection[UUID]) -> Sequence[OwnedJob]:
    return ()


async def test_a_watcher_that_is_cancelled_while_it_ends_the_listening_is_cancelled():
    may_close, leaving = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def listen() -> AsyncIterator[Waits]:
        try:
            yield Waits()
        finally:
            leaving.set()
            await may_close.wait()

    watches = Watches(read=no_rows, listen=listen, clock=SystemClock())

    async def look_once() -> None:
        async with watches.watch(uuid4()):
            await asyncio.sleep(0)

    watcher = asyncio.ensure_future(look_once())
    await leaving.wait()
    watcher.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watcher
    (listening,) = (task for task in asyncio.all_tasks() if task.get_name() == "watches")
    may_close.set()
    await asyncio.wait((listening,))


async def test_listening_that_has_died_is_told_of_and_started_anew_by_the_next_watcher():
    listeners = [Breaks(), Waits()]
    opened = [asyncio.Event(), asyncio.Event()]

    @asynccontextmanager
    async def listen() -> AsyncIterator[Breaks | Waits]:
        opened[2 - len(listeners)].set()
        yield listeners.pop(0)

    watches = Watches(read=no_rows, listen=listen, clock=SystemClock())
    with capture_logs() as logs:
        async with watches.watch(uuid4()):
            await opened[0].wait()
            while any(task.get_name() == "watches" for task in asyncio.all_tasks()):
                await asyncio.sleep(0)
            async with asyncio.timeout(5), watches.watch(uuid4()):
                await opened[1].wait()
    assert [entry["event"] for entry in logs] == ["watches.failed"]
    assert not listeners
