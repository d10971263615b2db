"""The database goes away while streams run: they pause at most, and what had to be written is written afterwards."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fakes.gateway_world import World

from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.db.engine import connect
from octavo_common.db.migrate import upgrade
from octavo_common.telemetry import setup
from octavo_gateway import admission

pytestmark = pytest.mark.db
SCRIPT = [65 + i for i in range(10)]


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    # Not under pytest's own folder: only root may enter that, and the server is not root.
    folder = Path(tempfile.mkdtemp(prefix="octavo-test-outage-"))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture
async def world(server: EmbeddedPostgres, telemetry: setup.Telemetry) -> AsyncIterator[World]:
    dsn = await asyncio.to_thread(server.start)
    await asyncio.to_thread(upgrade, dsn)
    database = connect(dsn, pool_size=12)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.dispose)
        world = World(dsn, database, telemetry, stack)
        await world.prepare()
        yield world


async def start_again(server: EmbeddedPostgres, world: World) -> None:
    """From a process of its own: a fork of this one runs gRPC's handlers, which may take the child down."""
    code = (
        "import sys, pathlib; from octavo_common.db.embedded import EmbeddedPostgres\n"
        "print(EmbeddedPostgres(pathlib.Path(sys.argv[1])).start())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(server.data_dir), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip().splitlines()[-1] == world.dsn


async def test_streams_go_on_through_a_restart_of_the_database(server: EmbeddedPostgres, world: World) -> None:
    gateway, first, second = await world.gateway(), await world.worker(), await world.worker()
    client = world.client(gateway)
    kept, moved, left = client.generate(), client.generate(), client.generate()
    kept_id, moved_id, left_id = await kept.accepted(), await moved.accepted(), await left.accepted()
    for worker, job_id in ((second, kept_id), (first, moved_id), (second, left_id)):
        await worker.take(job_id)
        await worker.release_tokens(job_id, 2)
    for stream in (kept, moved, left):
        await stream.tokens(2)

    await asyncio.to_thread(server.stop)
    # Tokens do not need the database; a death and a disconnect are dealt with when it is back.
    await second.release_tokens(kept_id, 2)
    await kept.tokens(4)
    await first.kill()
    left.call.cancel()
    await asyncio.sleep(1.5)
    await start_again(server, world)

    await second.take(moved_id)
    for job_id in (kept_id, moved_id):
        await second.finish(job_id)
    assert (await kept.rest()).token_ids == SCRIPT
    assert (await moved.rest()).token_ids == SCRIPT
    async with asyncio.timeout(10):
        while not (await world.job(left_id)).cancel_requested:
            await asyncio.sleep(0.05)


async def test_a_request_waits_for_a_database_that_restarts(
    server: EmbeddedPostgres, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SUBMIT_PAUSES_S", (0.2,) * 100)
    gateway, worker = await world.gateway(), await world.worker()
    client = world.client(gateway)
    await client.submit(prompt="warm")
    await asyncio.to_thread(server.stop)
    stream = client.generate()
    restarting = asyncio.create_task(start_again(server, world))
    job_id = await stream.accepted()
    await restarting
    await worker.take(job_id)
    await worker.finish(job_id)
    assert (await stream.rest()).token_ids == SCRIPT
    assert len(await world.jobs.list(tenant=None)) == 2
