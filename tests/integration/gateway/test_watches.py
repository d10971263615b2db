"""Whoever watches a job learns of its end by being told, not by the next look."""

from __future__ import annotations

import asyncio

import pytest
from fakes.gateway_world import World
from sqlalchemy import text

from octavo_common import store
from octavo_common.errors import Unavailable
from octavo_common.jobs.model import Principal, TenantLimits
from octavo_common.jobs.transitions import JOBS_CHANNEL
from octavo_gateway.jobs import Jobs
from octavo_gateway.watching import Watches

ADMIN = Principal(tenant="ops", scope="admin", limits=TenantLimits())


class NoPoll:
    """The machine's clock, for whose longer sleeps nobody lives long enough."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def time(self) -> float:
        return self._clock.time()

    async def sleep(self, seconds: float) -> None:
        if seconds > 0.03:
            await asyncio.Event().wait()
        await self._clock.sleep(seconds)


def watched(world: World) -> tuple[Jobs, Watches]:
    clock = NoPoll(world)
    listen = lambda: store.Listener(world.dsn, [JOBS_CHANNEL], world.clock)  # noqa: E731 - as app.py has it
    watches = Watches(read=world.streams.rows, listen=listen, clock=clock)
    return Jobs(world.jobs, watches, clock), watches


async def num_listening(world: World) -> int:
    """Connections that listen for all jobs: no gateway of these tests has one but for its watches."""
    found = text("select count(*) from pg_stat_activity where datname = current_database() and query = :query")
    async with world.database.engine.connect() as connection:
        return (await connection.execute(found, {"query": f'listen "{JOBS_CHANNEL}"'})).scalar_one()


async def nobody_listens(world: World) -> bool:
    """Whether the last of them goes within seconds: the server ends a session after its client has left."""
    async with asyncio.timeout(5):
        while await num_listening(world):
            await asyncio.sleep(0.02)
    return True


async def last_state(jobs: Jobs, job_id: str) -> str:
    async with asyncio.timeout(10):
        return [job.state.value async for job in jobs.watch(ADMIN, job_id)][-1]


async def test_ends_are_seen_without_waiting_for_a_poll(world: World):
    client = world.client(await world.gateway())
    jobs, watches = watched(world)
    worker = await world.worker()
    ids = [(await client.submit()).job_id for _ in range(4)]
    # Two look at the same one.
    watching = [asyncio.ensure_future(last_state(jobs, job_id)) for job_id in [*ids, ids[0]]]
    while watches.num_watched < len(ids) or not await num_listening(world):
        await asyncio.sleep(0.01)
    assert await num_listening(world) == 1
    for job_id in ids[:-1]:
        taken = await world.job(job_id)
        await worker.take(taken.id)
        assert await worker.finish(taken.id)
    await world.jobs.cancel((await world.job(ids[-1])).id, tenant=None)
    found = await asyncio.gather(*watching)
    assert found == ["succeeded", "succeeded", "succeeded", "cancelled", "succeeded"]
    assert watches.num_watched == 0 and await nobody_listens(world)


async def test_a_gateway_that_drains_ends_its_watches_at_once(world: World):
    client = world.client(await world.gateway())
    await world.worker()
    jobs, _ = watched(world)
    watching = asyncio.ensure_future(last_state(jobs, (await client.submit()).job_id))
    await asyncio.sleep(0.1)
    jobs.end_watches()
    with pytest.raises(Unavailable) as caught:
        await watching
    assert caught.value.code == "DRAINING"


async def test_watches_hold_no_connection_while_nobody_watches(world: World):
    client = world.client(await world.gateway())
    await world.worker()
    jobs, _ = watched(world)
    job_id = (await client.submit()).job_id
    for _ in range(3):
        watching = asyncio.ensure_future(last_state(jobs, job_id))
        async with asyncio.timeout(5):
            while not await num_listening(world):
                await asyncio.sleep(0.02)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert await nobody_listens(world)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "watches"] == []
