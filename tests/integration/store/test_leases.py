"""Leases: who renews keeps its jobs, who does not loses them; only the database's clock counts."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from store_world import World, result

from octavo_common import ids
from octavo_common.jobs.model import Held, JobState, Resumption


async def test_one_heartbeat_renews_all_leases_and_names_the_lost_and_cancelled(world: World) -> None:
    worker, other = await world.worker(), await world.worker()
    jobs = [await world.running(worker) for _ in range(64)]
    foreign = await world.running(other)
    for job in jobs:
        await world.age(job.id, 14)
    await world.jobs.cancel(jobs[0].id, tenant=None)
    await world.work.finish(jobs[1].id, jobs[1].fence, result=result(1))
    held = [Held(job.id, job.fence, 5) for job in [*jobs, foreign]] + [Held(ids.new_job_id(), 1, 0)]
    answer = await world.processes.heartbeat(worker, load={"num_running": 64}, held=held)
    assert answer.known
    assert answer.lost == {jobs[1].id, foreign.id, held[-1].job_id}
    assert answer.cancelled == {jobs[0].id}
    (left,) = await world.sql(
        "select count(*) as num, min(extract(epoch from lease_until - now()))::float8 as lease_s, min(num_tokens) as n"
        " from jobs where worker_id = :id and state = 'running'",
        id=worker,
    )
    assert (left.num, left.n) == (63, 5)
    assert left.lease_s > 10
    (record,) = [p for p in await world.processes.list("worker") if p.id == worker]
    assert record.load == {"num_running": 64}


async def test_an_expired_lease_that_nobody_has_taken_is_renewed(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    await world.age(job.id, 1000)
    assert (await world.processes.heartbeat(worker, held=[Held(job.id, job.fence, 1)])).lost == frozenset()
    assert await world.placement.reap() == []


async def test_a_job_of_many_lease_times_with_heartbeats_runs_once_however_eager_the_reaper(world: World) -> None:
    worker = await world.worker(lease_s=0.6)
    job = await world.running(worker)
    for _ in range(12):  # three leases and more
        await asyncio.sleep(0.15)
        assert (await world.processes.heartbeat(worker, held=[Held(job.id, job.fence, 0)])).lost == frozenset()
        assert await world.placement.reap() == []
    assert await world.work.finish(job.id, job.fence, result=result(1))
    assert (await world.event_names(job)).count("running") == 1


async def test_orphans_of_a_process_whose_row_is_gone_are_reaped_and_its_successor_does_not_renew_them(
    world: World,
) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    await world.processes.unregister(worker)
    successor = await world.worker()
    await world.processes.heartbeat(successor, held=[Held(job.id, job.fence, 0)])
    await world.age(job.id, 16)
    (reaped,) = await world.placement.reap()
    assert (reaped.id, reaped.state, reaped.losses) == (job.id, JobState.QUEUED, 1)


async def test_a_process_whose_row_vanished_is_told_and_registers_again(world: World) -> None:
    worker = await world.worker()
    await world.age(worker, 10_000)
    assert (await world.placement.prune(retention_s=60)).num_processes == 1
    assert not (await world.processes.heartbeat(worker)).known
    assert await world.processes.list() == []


async def test_the_reaper_waits_for_stream_owners_that_live(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    job = await world.running(worker, stream_owner=gateway)
    await world.age(job.id, 60)
    assert not (await world.due()).lost
    assert await world.placement.reap() == []
    await world.age(gateway, 60)
    assert (await world.due()).lost
    assert [reaped.id for reaped in await world.placement.reap()] == [job.id]


async def test_jobs_that_their_owners_look_after_never_hide_others_from_the_reaper(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    for _ in range(4):
        streamed = await world.running(worker, stream_owner=gateway)
        await world.age(streamed.id, 60)
    job = await world.running(worker)
    await world.age(job.id, 60)
    assert [reaped.id for reaped in await world.placement.reap(limit=2)] == [job.id]


async def test_a_reaped_job_waits_longer_after_each_loss_and_fails_after_the_third(world: World) -> None:
    worker = await world.worker()
    job = await world.submit()
    for losses in (1, 2, 3):
        await world.assign(job, worker)
        await world.work.claim(worker, 10)
        await world.age(job.id, 60)
        (reaped,) = await world.placement.reap()
        assert reaped.losses == losses
        if losses < 3:
            assert await world.placement.queue(10) == []
            await world.age(job.id, 10)
            (queued,) = await world.placement.queue(10)
            assert (queued.resumed, queued.losses) == (True, losses)
    ended = await world.get(job)
    assert ended.state is JobState.FAILED
    assert ended.error is not None
    assert ended.error["code"] == "WORKER_LOST"


async def test_queue_and_fleet_tell_whose_jobs_they_are_and_of_which_trace(world: World) -> None:
    worker = await world.worker()
    await world.submit(fair_key="alice", traceparent="00-trace")
    held = await world.running(worker, fair_key="bob")
    (queued,) = await world.placement.queue(10)
    assert (queued.fair_key, queued.traceparent) == ("alice", "00-trace")
    (seen,) = await world.placement.fleet()
    assert [(j.id, j.fair_key) for j in seen.jobs] == [(held.id, "bob")]


async def test_processes_are_listed_with_and_without_bounds(world: World) -> None:
    assert await world.processes.list() == []
    worker, gateway = await world.worker(), await world.gateway()
    await world.age(gateway, 60)

    async def listed(role: str | None = None, max_age_s: float | None = None) -> list[UUID]:
        return [record.id for record in await world.processes.list(role, max_age_s)]

    assert await listed() == [worker, gateway]
    assert await listed("worker") == await listed("worker", 30.0) == await listed(None, 30.0) == [worker]
    assert await listed("gateway") == [gateway]
    assert await listed("gateway", 30.0) == await listed("scheduler") == []


async def test_the_fleet_shows_losses_only_until_there_is_progress(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    await world.age(job.id, 60)
    await world.placement.reap()
    await world.age(job.id, 10)
    job = await world.assign(job, worker)
    (seen,) = await world.placement.fleet()
    assert [(j.id, j.losses) for j in seen.jobs] == [(job.id, 1)]
    await world.processes.heartbeat(worker, held=[Held(job.id, job.fence, 3)])
    (seen,) = await world.placement.fleet()
    assert [(j.losses, j.num_tokens) for j in seen.jobs] == [(0, 3)]


async def test_a_job_with_a_passed_deadline_fails_in_the_queue(world: World) -> None:
    late, early = await world.submit(timeout_s=5), await world.submit(timeout_s=500)
    await world.age(late.id, 10)
    await world.worker()
    assert [q.id for q in await world.placement.queue(10)] == [early.id]
    assert (await world.due()).late
    assert await world.placement.expire_deadlines() == 1
    assert not (await world.due()).late
    ended = await world.get(late)
    assert ended.error is not None
    assert (ended.state, ended.error["code"]) == (JobState.FAILED, "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("first", ["finish", "reap"])
async def test_a_reaper_and_a_finish_in_either_order_leave_one_end(world: World, first: str) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    await world.age(job.id, 60)
    if first == "finish":
        assert await world.work.finish(job.id, job.fence, result=result(1))
        assert await world.placement.reap() == []
        assert (await world.get(job)).state is JobState.SUCCEEDED
    else:
        assert len(await world.placement.reap()) == 1
        assert not await world.work.finish(job.id, job.fence, result=result(1))
        assert (await world.get(job)).state is JobState.QUEUED


async def test_finish_reap_resume_cancel_and_heartbeat_at_once_leave_a_row_that_one_of_them_wrote(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    for round_number in range(15):
        # A resume of the round before may have found the worker dead.
        await world.processes.heartbeat(worker)
        job = await world.running(worker, stream_owner=gateway)
        await world.age(job.id, 60)
        if round_number % 2:
            await world.sql("update jobs set stream_owner = null where id = :id", id=job.id)
        answers = await asyncio.gather(
            world.work.finish(job.id, job.fence, result=result(1, 2)),
            world.placement.reap(),
            world.streams.resume(job.id, Resumption(owner=gateway, fence=job.fence, emitted_ids=(1,))),
            world.jobs.cancel(job.id, tenant=None),
            world.processes.heartbeat(worker, held=[Held(job.id, job.fence, 1)]),
        )
        finished, reaped, resumed, _, _ = answers
        requeued = bool(reaped) or resumed is not None
        assert finished != requeued
        after = await world.get(job)
        assert after.fence == job.fence + requeued
        if finished:
            assert (after.state, after.result) == (JobState.SUCCEEDED, result(1, 2).to_json())
        else:
            assert after.state in (JobState.QUEUED, JobState.CANCELLED)
        names = await world.event_names(job)
        assert sum(name in ("succeeded", "failed", "cancelled") for name in names) == after.state.ended
        await world.jobs.cancel(job.id, tenant=None)


async def test_the_servers_age_is_told_by_its_own_clock(world: World) -> None:
    assert 0 < (await world.due()).server_age_s < 24 * 3600
