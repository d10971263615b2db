"""Jobs that a gateway gives to its model's only worker by itself, through real gateways, tables and workers."""

from __future__ import annotations

import asyncio

import pytest
from fakes.gateway_world import RunningGateway, World
from fakes.scripted_worker import ScriptedWorker

from octavo_common.jobs.model import TenantLimits

pytestmark = pytest.mark.db
SCRIPT = [65 + i for i in range(10)]


async def connected(gateway: RunningGateway, worker: ScriptedWorker) -> None:
    """Wait until the gateway's connection to a worker stands."""
    async with asyncio.timeout(5):
        while not gateway.gateway.workers.is_connected(worker.address):
            await asyncio.sleep(0.01)


async def test_a_stream_comes_from_the_only_worker_without_a_scheduler(world: World) -> None:
    gateway, worker = await world.gateway(direct=True), await world.worker()
    await gateway.gateway.direct.connect()
    await connected(gateway, worker)
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    assert (await world.job(job_id)).worker_id == worker.id
    await worker.claim(job_id)
    await worker.release_tokens(job_id, 3)
    await stream.tokens(3)
    await worker.finish(job_id)
    assert (await stream.rest()).token_ids == SCRIPT
    assert await world.event_names(job_id) == ["queued", "assigned", "running", "succeeded"]


async def test_a_direct_job_whose_worker_dies_goes_on_elsewhere_with_the_same_tokens(world: World) -> None:
    gateway, first = await world.gateway(direct=True), await world.worker()
    await connected(gateway, first)
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await first.claim(job_id)
    await first.release_tokens(job_id, 4)
    await stream.tokens(4)
    await first.kill()
    second = await world.worker()
    await world.until(job_id, "queued")
    await second.take(job_id)
    await second.release_tokens(job_id, 1)
    # Had it ended before its stream came back, the rest would be read from the row.
    await stream.tokens(5)
    await second.finish(job_id)
    assert (await stream.rest()).token_ids == SCRIPT
    assert second.first_tokens == [4]


async def test_a_job_waits_for_the_scheduler_when_the_worker_has_died_a_moment_ago(world: World) -> None:
    gateway, worker = await world.gateway(direct=True), await world.worker()
    await connected(gateway, worker)
    await worker.kill()
    async with asyncio.timeout(5):
        # The row says that it lives, and will for a whole lease.
        while gateway.gateway.workers.is_connected(worker.address):
            await asyncio.sleep(0.01)
    job_id = await world.client(gateway).generate().accepted()
    assert (await world.job(job_id)).state.value == "queued"


async def test_the_scheduler_chooses_between_workers_and_for_who_has_limits_or_no_stream(world: World) -> None:
    gateway, worker = await world.gateway(direct=True), await world.worker()
    await connected(gateway, worker)
    client = world.client(gateway)
    submitted = await client.submit()
    assert (await world.job(submitted.job_id)).state.value == "queued"
    await world.jobs.cancel((await world.job(submitted.job_id)).id, tenant=None)

    await world.tenants.set_limits("limited", TenantLimits(max_running=5))
    limited = world.client(gateway, await world.keys.create("limited", "user", "test"))
    job_id = await limited.generate().accepted()
    assert (await world.job(job_id)).state.value == "queued"
    await world.jobs.cancel(job_id, tenant=None)

    second = await world.worker()
    await connected(gateway, second)
    # The gateway's picture of the fleet is at most a second old.
    await asyncio.sleep(1.1)
    job_id = await client.generate().accepted()
    assert (await world.job(job_id)).state.value == "queued"
