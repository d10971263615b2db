"""Limits, keys and order when many act at once: quotas, idempotency, placement by several schedulers."""

from __future__ import annotations

import asyncio

import pytest
from store_world import World, card, new_job, result

from octavo_common import ids
from octavo_common.errors import IdempotencyConflict, QuotaExceeded, Unavailable
from octavo_common.jobs.model import Assignment, JobState, Resumption, TenantLimits


async def test_no_more_jobs_are_queued_than_the_limit_however_many_come_at_once(world: World) -> None:
    answers = await asyncio.gather(
        *(world.jobs.submit(new_job(), max_queued=5) for _ in range(16)), return_exceptions=True
    )
    refused = [answer for answer in answers if isinstance(answer, QuotaExceeded)]
    assert (len(refused), len(answers) - len(refused)) == (11, 5)
    assert refused[0].retry_after_s is not None
    assert len(await world.jobs.list(tenant="acme")) == 5
    # Another tenant's queue is its own, and jobs that run do not count.
    await world.jobs.submit(new_job(tenant="other"), max_queued=1)
    worker = await world.worker()
    await world.assign((await world.jobs.list(tenant="acme"))[0], worker)
    await world.jobs.submit(new_job(), max_queued=5)


@pytest.mark.parametrize("max_queued", [None, 100])
async def test_one_idempotency_key_makes_one_job_however_many_come_at_once(
    world: World, max_queued: int | None
) -> None:
    answers = await asyncio.gather(
        *(world.jobs.submit(new_job(idempotency_key="k"), max_queued=max_queued) for _ in range(12))
    )
    assert len({job.id for job, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    with pytest.raises(IdempotencyConflict):
        await world.jobs.submit(new_job(idempotency_key="k", request_digest="x"), max_queued=max_queued)
    _, created = await world.jobs.submit(new_job(idempotency_key="k", tenant="other"), max_queued=max_queued)
    assert created


async def test_an_idempotency_key_returns_its_job_also_when_ended_reaped_or_over_the_limit(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker, idempotency_key="k")
    await world.age(job.id, 60)
    await world.placement.reap()
    again, created = await world.jobs.submit(new_job(idempotency_key="k"), max_queued=0)
    assert (again.id, created, again.state) == (job.id, False, JobState.QUEUED)
    await world.jobs.cancel(job.id, tenant=None)
    again, created = await world.jobs.submit(new_job(idempotency_key="k"), max_queued=0)
    assert (again.id, created, again.state) == (job.id, False, JobState.CANCELLED)


async def test_the_queue_is_in_order_of_resumed_then_priority_then_age(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    old, young = await world.submit(), await world.submit()
    urgent = await world.submit(priority=1)
    resumed = await world.running(worker, stream_owner=gateway)
    await world.streams.resume(
        resumed.id, Resumption(owner=gateway, fence=resumed.fence, emitted_ids=(1,), worker_dead=False)
    )
    queue = await world.placement.queue(10)
    assert [q.id for q in queue] == [resumed.id, urgent.id, old.id, young.id]
    assert [q.resumed for q in queue] == [True, False, False, False]
    assert queue[0].num_emitted_tokens == 1


async def test_jobs_that_nobody_can_run_never_hide_others(world: World) -> None:
    await world.worker()
    await world.worker(card=card(digest="e" * 64), draining=True)
    await world.tenants.set_limits("full", TenantLimits(max_running=0))
    for _ in range(3):
        await world.submit(priority=9, model_digest="unserved")
        await world.submit(priority=9, model_digest="e" * 64)
        await world.submit(priority=9, tenant="full")
    delayed = await world.submit(priority=9)
    await world.sql("update jobs set not_before = now() + interval '1 hour' where id = :id", id=delayed.id)
    job = await world.submit()
    assert [q.id for q in await world.placement.queue(2)] == [job.id]


async def test_a_tenant_never_has_more_running_jobs_than_its_limit_with_two_schedulers_placing(world: World) -> None:
    worker = await world.worker(max_jobs=100)
    await world.tenants.set_limits("acme", TenantLimits(max_running=3))
    jobs = [await world.submit() for _ in range(10)]
    free = await world.submit(tenant="other")
    wanted = [Assignment(job_id=job.id, fence=0, worker_id=worker) for job in [*jobs, free]]
    taken = await asyncio.gather(*(world.placement.assign(wanted[::step]) for step in (1, -1, 1, -1)))
    flat = [job_id for ids_ in taken for job_id in ids_]
    assert len(flat) == len(set(flat)) == 4
    assert free.id in flat
    assert await world.placement.queue(10) == []
    first = next(job_id for job_id in flat if job_id != free.id)
    await world.work.claim(worker, 10)
    await world.work.finish(first, 1, result=result(1))
    (queued, *_) = await world.placement.queue(10)
    assert (queued.tenant_max_running, queued.tenant_num_running) == (3, 2)


async def test_two_schedulers_that_place_at_once_give_every_job_to_one_worker(world: World) -> None:
    workers = [await world.worker(), await world.worker()]
    jobs = [await world.submit() for _ in range(20)]
    taken = await asyncio.gather(
        *(
            world.placement.assign([Assignment(job_id=job.id, fence=0, worker_id=worker) for job in jobs])
            for worker in workers
        )
    )
    assert sorted(len(ids_) for ids_ in taken) == [0, 20]
    claimed = [await world.work.claim(worker, 100) for worker in workers]
    assert sorted(map(len, claimed)) == [0, 20]


async def test_nothing_is_assigned_to_workers_that_drain_are_dead_or_unknown(world: World) -> None:
    draining, dead = await world.worker(draining=True), await world.worker()
    await world.age(dead, 60)
    job = await world.submit()
    for worker in (draining, dead, ids.new_process_id()):
        assert await world.placement.assign([Assignment(job_id=job.id, fence=0, worker_id=worker)]) == []
    assert [w.id for w in await world.placement.fleet()] == [draining]
    alive = await world.worker()
    await world.processes.set_draining(alive)
    assert await world.placement.assign([Assignment(job_id=job.id, fence=0, worker_id=alive)]) == []


async def test_a_full_worker_that_gives_a_job_back_counts_no_loss(world: World) -> None:
    worker = await world.worker()
    job = await world.assign(await world.submit(), worker)
    assert await world.work.release(job.id, job.fence, None)
    assert not await world.work.release(job.id, job.fence, None)
    back = await world.get(job)
    assert (back.state, back.losses, back.total_losses, back.fence) == (JobState.QUEUED, 0, 0, job.fence + 1)


async def test_a_job_that_was_given_back_unbegun_has_not_started(world: World) -> None:
    full, other = await world.worker(), await world.worker()
    job = await world.running(full)
    assert job.started_at is not None
    assert await world.work.release(job.id, job.fence, None)
    assert (await world.get(job)).started_at is None
    job = await world.assign(job, other)
    (claimed,) = await world.work.claim(other, 1)
    assert claimed.earlier_start_s is None and claimed.job.started_at is not None
    # After a loss it had begun, whoever gives it back.
    await world.age(job.id, 60)
    await world.placement.reap()
    await world.age(job.id, 60)
    job = await world.assign(job, full)
    await world.work.claim(full, 1)
    assert await world.work.release(job.id, job.fence, None)
    assert (await world.get(job)).started_at == claimed.job.started_at


async def test_a_drained_job_goes_on_behind_its_tokens(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    assert await world.work.release(job.id, job.fence, (4, 5))
    job = await world.assign(job, worker)
    (claimed,) = await world.work.claim(worker, 1)
    assert (claimed.job.emitted_ids, claimed.job.fence) == ((4, 5), job.fence)


async def test_one_scheduler_leads_and_another_takes_over_when_its_connection_ends(world: World) -> None:
    first, second = await world.placement.lead_connection(), await world.placement.lead_connection()
    try:
        assert await world.placement.try_lead(first)
        assert await world.placement.try_lead(first)
        assert not await world.placement.try_lead(second)
        await world.sql(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted"
            " and pid <> pg_backend_pid() and database = (select oid from pg_database where datname=current_database())"
        )
        with pytest.raises(Unavailable):
            await world.placement.try_lead(first)
        assert await world.placement.try_lead(second)
    finally:
        await first.close()
        await second.close()
