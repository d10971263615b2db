"""The database goes away and comes back: callers get a clear error meanwhile, and nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import psycopg
import pytest
from store_world import World, new_job, result

from octavo_common.clock import SystemClock
from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.db.engine import connect
from octavo_common.db.migrate import upgrade
from octavo_common.errors import Unavailable
from octavo_common.ids import new_process_id
from octavo_common.jobs.model import Held, JobState, NewProcess
from octavo_common.jobs.transitions import JOBS_CHANNEL
from octavo_common.store import Listener


class Outage:
    def __init__(self, server: EmbeddedPostgres, data_dir: Path, world: World) -> None:
        self.server, self.data_dir, self.world = server, data_dir, world

    async def begin(self, *, kill: bool) -> None:
        if kill:
            pid = int((self.data_dir / "pg" / "postmaster.pid").read_text().split()[0])
            backends = psutil.Process(pid).children()
            os.kill(pid, signal.SIGKILL)
            # They end a moment after their parent, and serve until then.
            await asyncio.to_thread(psutil.wait_procs, backends, timeout=10)
        else:
            await asyncio.to_thread(self.server.stop)

    async def end(self) -> None:
        assert await asyncio.to_thread(self.server.start) == self.world.dsn


@pytest.fixture
async def outage() -> AsyncIterator[Outage]:
    folder = Path(tempfile.mkdtemp(prefix="octavo-test-pg-"))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder)
    dsn = server.start()
    upgrade(dsn)
    database = connect(dsn)
    yield Outage(server, folder, World(dsn, database))
    await database.dispose()
    server.stop()
    shutil.rmtree(folder)


@pytest.mark.parametrize("kill", [False, True])
async def test_jobs_and_leases_outlive_the_server_and_the_pool_and_listener_come_back(
    outage: Outage, kill: bool
) -> None:
    world = outage.world
    worker = await world.worker()
    running, queued = await world.running(worker), await world.submit()
    async with Listener(world.dsn, [JOBS_CHANNEL], SystemClock()) as listener:
        assert await listener.wait(10)
        await outage.begin(kill=kill)
        with pytest.raises(Unavailable) as refused:
            await world.submit()
        assert refused.value.retry_after_s
        with pytest.raises(Unavailable):
            await world.processes.heartbeat(worker)
        with pytest.raises(Unavailable):
            await world.work.finish(running.id, running.fence, result=result(1))
        await outage.end()
        # Everyone who had connections works on without a restart.
        assert await listener.wait(3)
        answer = await world.processes.heartbeat(worker, held=[Held(running.id, running.fence, 1)])
        assert (answer.known, answer.lost) == (True, frozenset())
        assert await world.work.finish(running.id, running.fence, result=result(1))
        assert (await world.get(running)).state is JobState.SUCCEEDED
        assert (await world.get(queued)).state is JobState.QUEUED
        await asyncio.sleep(0.1)
        await listener.wait(0.1)
        await world.submit()
        assert await listener.wait(3)
    assert (await world.due()).server_age_s < 60


async def test_a_held_lead_is_lost_with_the_server_and_won_again(outage: Outage) -> None:
    world = outage.world
    first = await world.placement.lead_connection()
    assert await world.placement.try_lead(first)
    await outage.begin(kill=False)
    with pytest.raises(Unavailable):
        await world.placement.try_lead(first)
    with pytest.raises(Unavailable):
        await world.placement.lead_connection()
    await first.close()
    await outage.end()
    second = await world.placement.lead_connection()
    assert await world.placement.try_lead(second)
    await second.close()


async def test_accepted_means_committed_however_the_server_dies(outage: Outage) -> None:
    world = outage.world
    accepted = [(await world.jobs.submit(new_job(), max_queued=100))[0].id for _ in range(10)]
    await outage.begin(kill=True)
    await outage.end()
    assert {job.id for job in await world.jobs.list(tenant="acme")} == set(accepted)


async def test_a_connection_that_the_server_has_closed_is_replaced_before_it_is_used(world: World) -> None:
    worker = await world.worker()
    await asyncio.gather(*(world.processes.heartbeat(worker) for _ in range(4)))
    async with await psycopg.AsyncConnection.connect(world.dsn, autocommit=True) as other:
        closed = await other.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'octavo' and datname = current_database()"
        )
        assert [row[0] for row in await closed.fetchall()] == [True] * closed.rowcount
        assert closed.rowcount
    for _ in range(6):
        await world.processes.heartbeat(worker)


async def test_a_process_that_starts_while_the_database_is_away_is_there_when_it_comes_back(outage: Outage) -> None:
    world = outage.world
    await outage.begin(kill=False)
    process = NewProcess(id=new_process_id(), role="gateway", address="127.0.0.1:1", lease_s=15.0)
    announcing = asyncio.create_task(world.processes.announce(process, SystemClock()))
    await asyncio.sleep(0.3)
    assert not announcing.done()
    await outage.end()
    await asyncio.wait_for(announcing, 20)
    assert [record.id for record in await world.processes.list()] == [process.id]
