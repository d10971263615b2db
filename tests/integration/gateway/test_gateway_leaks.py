"""Clients that leave at any moment leave nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.gateway_world import World

pytestmark = pytest.mark.db
NUM_ROUNDS, NUM_CLIENTS = 5, 15


async def test_after_many_disconnects_no_job_is_open_and_no_task_is_left(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    client = world.client(gateway)

    async def come_and_go(delay_s: float) -> None:
        call = client.generate().call
        reading = asyncio.ensure_future(call.read())
        await asyncio.sleep(delay_s)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    async def settle() -> tuple[int, int]:
        """Tasks and descriptors once all jobs have ended."""
        async with asyncio.timeout(10):
            while any(not j.state.ended for j in await world.jobs.list(tenant=None, limit=1000)) or (
                gateway.gateway.hub.num_followed
            ):
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        return len(asyncio.all_tasks()), len(list(Path("/proc/self/fd").iterdir()))

    counts: list[tuple[int, int]] = []
    for _ in range(NUM_ROUNDS):
        await asyncio.gather(*(come_and_go(n * 0.004) for n in range(NUM_CLIENTS)))
        counts.append(await settle())
    jobs = await world.jobs.list(tenant=None, limit=1000)
    assert {job.state.value for job in jobs} <= {"cancelled"}
    assert counts[-1][0] <= counts[0][0]
    # The pool of database connections breathes, but 60 more disconnects must not show.
    assert counts[-1][1] <= counts[0][1] + 24
    assert worker.num_attached == 0
