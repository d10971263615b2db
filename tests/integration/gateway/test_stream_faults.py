"""Faults under streams: what may pass is waited for, what is ours ends the stream at once, its place in the log."""

from __future__ import annotations

import asyncio
from uuid import UUID

import grpc
import pytest
import structlog
from fakes.gateway_world import Stream, World, error_of
from fakes.scripted_worker import ScriptedWorker
from sqlalchemy import exc

from octavo_common.errors import Unavailable
from octavo_common.store import StreamStore

pytestmark = pytest.mark.db


class Faulty:
    """Lets a method of the store fail so many times, then work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException, num_faults: int) -> None:
        self.num_left = num_faults
        works = getattr(StreamStore, method)

        async def fails(store: StreamStore, *args: object) -> object:
            if self.num_left:
                self.num_left -= 1
                raise error
            return await works(store, *args)

        monkeypatch.setattr(StreamStore, method, fails)


async def streaming(world: World) -> tuple[ScriptedWorker, Stream, UUID]:
    """A stream of which three tokens have come."""
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 3)
    await stream.tokens(3)
    return worker, stream, job_id


async def test_a_fault_of_ours_while_a_job_is_moved_ends_its_stream_with_a_typed_error_and_a_traceback(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stream, job_id = await streaming(world)
    faulty = Faulty(monkeypatch, "resume", TypeError("planted"), 1)
    with structlog.testing.capture_logs() as logs:
        await worker.kill()
        code, _, reason = await error_of(stream.call)
    assert (code, reason, faulty.num_left) == (grpc.StatusCode.INTERNAL, "INTERNAL", 0)
    (line,) = [line for line in logs if line["event"] == "stream.failed"]
    assert line["exc_info"] and line["job_id"] == str(job_id)
    # Nobody looks after it here any more, so nobody is said to.
    async with asyncio.timeout(5):
        while (await world.job(job_id)).stream_owner is not None:
            await asyncio.sleep(0.02)


async def test_a_database_that_is_away_while_a_job_is_moved_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stream, job_id = await streaming(world)
    faulty = Faulty(monkeypatch, "resume", Unavailable("away"), 2)
    await worker.kill()
    other = await world.worker()
    await world.until(job_id, "queued")
    await other.take(job_id)
    await other.finish(job_id)
    await stream.rest()
    assert faulty.num_left == 0


async def test_a_fault_of_ours_in_the_look_at_all_rows_ends_the_streams_that_would_wait_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    Faulty(monkeypatch, "rows", KeyError("planted"), 1)
    with structlog.testing.capture_logs() as logs:
        code, _, reason = await error_of(stream.call)
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert [line["exc_info"] for line in logs if line["event"] == "streams.failed"] == [True]
    assert (await world.job(job_id)).state.value == "queued"


@pytest.mark.parametrize(
    "error", [exc.ResourceClosedError("gone"), exc.PendingRollbackError("gone"), ConnectionResetError("gone")]
)
async def test_what_a_lost_connection_raises_past_the_driver_counts_as_a_database_that_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_: object) -> object:
        raise error

    monkeypatch.setattr(world.database, "run", fails)
    with pytest.raises(Unavailable):
        await world.jobs.list(tenant=None)
