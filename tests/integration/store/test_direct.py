"""Jobs that get their worker as they are accepted: what the statement does is what submit and assign do one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from sqlalchemy import text
from store_world import World, new_job, result

from octavo_common import ids
from octavo_common.clock import SystemClock
from octavo_common.jobs import transitions as rules
from octavo_common.jobs.model import Held, Job, JobState, TenantLimits
from octavo_common.jobs.transitions import JOBS_CHANNEL, Core, Facts, gateway_channel, worker_channel
from octavo_common.store import Listener
from octavo_common.store.changes import CORE_COLUMNS, to_core

Spoil = Callable[[World, UUID], Awaitable[object]]


async def submit(world: World, worker_id: UUID, **changes: object) -> Job:
    job, created = await world.jobs.submit(new_job(**changes), max_queued=None, worker_id=worker_id)
    assert created
    return job


async def test_a_direct_job_is_assigned_as_the_rule_says_and_is_claimed_and_ended_like_any_other(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    job = await submit(world, worker, stream_owner=gateway, timeout_s=60)
    change = rules.assign(Core(stream_owner=gateway), fence=0, worker=worker, facts=Facts())
    assert change is not None
    async with world.database.begin() as connection:
        row = (await connection.execute(text(f"select {CORE_COLUMNS} from jobs j"))).mappings().one()
    core, facts = to_core(row)
    assert core == change.after
    assert not facts.lease_over
    assert (job.state, job.fence, job.worker_id) == (JobState.ASSIGNED, 1, worker)
    events = await world.jobs.events(job.id, tenant=None)
    assert [(event.event, event.fence, event.process_id) for event in events] == [
        ("queued", 0, gateway),
        ("assigned", 1, worker),
    ]
    assert await world.placement.queue(10) == []

    (claimed,) = await world.work.claim(worker, 10)
    assert (claimed.job.state, claimed.job.fence) == (JobState.RUNNING, 1)
    assert await world.work.finish(job.id, 1, result=result(7))
    assert await world.event_names(job) == ["queued", "assigned", "running", "succeeded"]


async def test_a_direct_job_wakes_its_worker_and_nobody_else(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    channels = (JOBS_CHANNEL, worker_channel(worker), gateway_channel(gateway))
    clock = SystemClock()
    async with (
        Listener(world.dsn, channels[:1], clock) as on_jobs,
        Listener(world.dsn, channels[1:2], clock) as on_worker,
        Listener(world.dsn, channels[2:], clock) as on_gateway,
    ):
        listeners = (on_jobs, on_worker, on_gateway)
        for listener in listeners:
            assert await listener.wait(10)
        await submit(world, worker, stream_owner=gateway)
        assert [await listener.wait(0.3) for listener in listeners] == [False, True, False]


async def _drains(world: World, worker: UUID) -> None:
    await world.processes.set_draining(worker)


async def _is_suspected(world: World, worker: UUID) -> None:
    await world.sql("update processes set suspected_at = now() where id = :id", id=worker)


async def _is_silent(world: World, worker: UUID) -> None:
    await world.age(worker, 16)


async def _is_full(world: World, worker: UUID) -> None:
    for _ in range(2):
        await world.running(worker)


async def _is_not_first(world: World, worker: UUID) -> None:
    await world.submit(tenant="other")


async def _has_a_limit(world: World, worker: UUID) -> None:
    await world.tenants.set_limits("acme", TenantLimits(max_running=9))


async def _has_another_model(world: World, worker: UUID) -> None:
    await world.sql("update processes set card = jsonb_set(card, '{digest}', '\"e\"') where id = :id", id=worker)


async def _is_gone(world: World, worker: UUID) -> None:
    await world.processes.unregister(worker)


@pytest.mark.parametrize(
    "spoil",
    [_drains, _is_suspected, _is_silent, _is_full, _is_not_first, _has_a_limit, _has_another_model, _is_gone],
)
async def test_a_job_is_queued_where_the_worker_or_the_tenant_cannot_take_it_at_once(
    world: World, spoil: Spoil
) -> None:
    worker = await world.worker(max_jobs=2)
    await spoil(world, worker)
    job = await submit(world, worker)
    assert (job.state, job.fence, job.worker_id, job.assigned_at, job.lease_until) == (
        JobState.QUEUED,
        0,
        None,
        None,
        None,
    )
    assert await world.event_names(job) == ["queued"]
    assert job.id not in [claimed.job.id for claimed in await world.work.claim(worker, 10)]


async def test_a_jobs_key_id_and_quota_hold_for_direct_jobs_too(world: World) -> None:
    worker = await world.worker()
    new = new_job(idempotency_key="k")
    first, created = await world.jobs.submit(new, max_queued=1, worker_id=worker)
    assert created
    assert await world.jobs.submit(new, max_queued=1, worker_id=worker) == (first, True)
    other = await world.jobs.submit(new_job(idempotency_key="k"), max_queued=1, worker_id=worker)
    assert other == (first, False)
    # Queued jobs alone count.
    for _ in range(3):
        assert (await world.jobs.submit(new_job(), max_queued=1, worker_id=worker))[0].state is JobState.ASSIGNED


async def test_a_worker_that_never_claims_a_direct_job_loses_it_with_its_lease(world: World) -> None:
    worker = await world.worker()
    job = await submit(world, worker)
    assert await world.placement.reap() == []
    await world.age(job.id, 16)
    (reaped,) = await world.placement.reap()
    assert (reaped.id, reaped.state, reaped.fence, reaped.losses) == (job.id, JobState.QUEUED, 2, 1)


async def test_direct_jobs_that_come_at_once_may_pass_the_capacity_and_are_given_back_without_a_loss(
    world: World,
) -> None:
    worker = await world.worker(max_jobs=2)
    made = await asyncio.gather(*(submit(world, worker, id=ids.new_job_id()) for _ in range(8)))
    assert sum(job.state is JobState.ASSIGNED for job in made) >= 2
    claimed = await world.work.claim(worker, 40)
    for extra in claimed[2:]:
        assert await world.work.release(extra.job.id, extra.job.fence, None)
    rows = [await world.get(job) for job in made]
    assert sum(row.state is JobState.RUNNING for row in rows) == 2
    assert all(row.total_losses == 0 for row in rows)


@pytest.mark.parametrize("ends_first", [False, True])
async def test_a_claim_that_a_crash_of_the_database_has_lost_is_made_again_under_the_same_fence(
    world: World, ends_first: bool
) -> None:
    worker = await world.worker()
    job = await submit(world, worker)
    (first,) = await world.work.claim(worker, 10, held=[])
    # As the row comes back: it was assigned on disk.
    await world.sql("update jobs set state = 'assigned', started_at = null where id = :id", id=job.id)
    renewed = await world.processes.heartbeat(worker, held=[Held(job.id, 1, 3)])
    assert not renewed.lost
    if not ends_first:
        (again,) = await world.work.claim(worker, 10, held=[job.id])
        assert (again.job.id, again.job.fence) == (first.job.id, first.job.fence)
    assert await world.work.finish(job.id, 1, result=result(1))
    assert not await world.work.claim(worker, 10, held=[])
    assert (await world.jobs.get(job.id, tenant=None)).state is JobState.SUCCEEDED


async def test_an_assignment_in_the_queue_is_flushed_by_its_claim_and_a_direct_one_needs_no_flush(
    world: World,
) -> None:
    """By the server's own count of what was flushed: it passes the claim's records at once, unless that need not be."""

    async def is_flushed_after_claim(worker: UUID) -> bool:
        # What others write meanwhile lies behind it as well.
        (row,) = await world.sql("select pg_current_wal_insert_lsn()::text as begin")
        assert len(await world.work.claim(worker, 10)) == 1
        query = "select pg_current_wal_flush_lsn() > cast(:begin as pg_lsn) as is_flushed"
        (after,) = await world.sql(query, begin=row.begin)
        return after.is_flushed

    worker = await world.worker()
    await world.assign(await world.submit(), worker)
    assert await is_flushed_after_claim(worker)
    lagged = False
    # The log's writer may be faster than the question.
    for _ in range(20):
        await submit(world, worker)
        lagged = lagged or not await is_flushed_after_claim(worker)
        for job in await world.jobs.list(tenant="acme"):
            await world.work.finish(job.id, job.fence, result=result(1))
    assert lagged
