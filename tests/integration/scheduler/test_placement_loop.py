"""The loop in this process, on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scheduler_world import TOKEN, World, card, eventually

from octavo_common.clock import SystemClock
from octavo_common.jobs.model import JobState, TenantLimits
from octavo_common.jobs.transitions import JOBS_CHANNEL
from octavo_common.store import Listener, PlacementStore
from octavo_common.telemetry.instruments import Instruments
from octavo_scheduler.fleet import Fleet
from octavo_scheduler.loop import PlacementLoop
from octavo_scheduler.settings import SchedulerSettings
from octavo_scheduler.spans import NoSpans, PlacementSpans, Spans
from octavo_scheduler.watch import WorkerWatch

pytestmark = pytest.mark.db


@asynccontextmanager
async def scheduling(world: World, *, spans: Spans | None = None, **changes: Any) -> AsyncIterator[PlacementLoop]:
    clock = SystemClock()
    settings = SchedulerSettings(**{"poll_s": 0.2, "standby_poll_s": 0.1, **changes})
    fleet = Fleet(clock)
    listener = Listener(world.dsn, [JOBS_CHANNEL], clock)
    watch = WorkerWatch(fleet, token=TOKEN, clock=clock, on_change=listener.wake)
    loop = PlacementLoop(
        store=PlacementStore(world.database),
        listener=listener,
        fleet=fleet,
        watch=watch,
        instruments=Instruments(NoOpMeterProvider().get_meter("test")),
        spans=spans or NoSpans(),
        settings=settings,
        clock=clock,
    )
    async with listener:
        task = asyncio.create_task(loop.run())
        try:
            yield loop
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await watch.close()


async def test_a_submitted_job_is_assigned_and_both_sides_are_told(world: World) -> None:
    worker_id = await world.worker()
    async with (
        scheduling(world) as loop,
        Listener(world.dsn, [f"octavo_worker_{worker_id.hex}"], SystemClock()) as told,
    ):
        await eventually(lambda: _true(loop.figures.placing), 5)
        await told.wait(5)  # it has connected
        job = await world.submit()
        assert await told.wait(5)
        row = await world.get(job)
        assert (row.state, row.worker_id, row.fence) == (JobState.ASSIGNED, worker_id, job.fence + 1)
        assert loop.figures.num_assigned == 1


async def test_jobs_that_came_before_the_scheduler_are_assigned(world: World) -> None:
    job = await world.submit()
    await world.worker()
    async with scheduling(world):
        await world.until(job, JobState.ASSIGNED, 5)


async def test_a_worker_that_comes_later_gets_what_waits(world: World) -> None:
    job = await world.submit()
    async with scheduling(world) as loop:
        await eventually(lambda: _true(loop.figures.placing), 5)
        await world.worker()
        await world.until(job, JobState.ASSIGNED, 5)


async def test_a_job_for_another_model_waits_and_hides_nobody(world: World) -> None:
    await world.worker()
    other = await world.submit(model_digest="e" * 64, priority=50)
    job = await world.submit()
    async with scheduling(world, page=1):
        await world.until(job, JobState.ASSIGNED, 5)
        assert (await world.get(other)).state is JobState.QUEUED
        await world.worker(card=card(digest="e" * 64))
        await world.until(other, JobState.ASSIGNED, 5)


async def test_a_finished_job_makes_room_at_once(world: World) -> None:
    worker_id = await world.worker(max_jobs=1)
    first, second = await world.submit(), await world.submit()
    # A poll so long that only the notification can be what wakes it.
    async with scheduling(world, poll_s=60.0):
        await world.until(first, JobState.ASSIGNED, 5)
        (claimed,) = await world.work.claim(worker_id, 10)
        assert (await world.get(second)).state is JobState.QUEUED
        assert await world.finish(claimed.job)
        await world.until(second, JobState.ASSIGNED, 5)


async def test_capacity_and_tenant_limits_hold_for_a_burst(world: World) -> None:
    workers = [await world.worker(max_jobs=3) for _ in range(2)]
    await world.tenants.set_limits("small", TenantLimits(max_running=1, max_queued=None))
    for _ in range(4):
        await world.submit(tenant="small")
        await world.submit(tenant="big")
    async with scheduling(world, page=2):

        async def settled() -> bool:
            return len(await world.sql("select 1 from jobs where state = 'assigned'")) == 5

        await eventually(settled, 5)
        await asyncio.sleep(0.5)
        assert await settled()
    counts = await world.sql("select worker_id, count(*) as n from jobs where state = 'assigned' group by worker_id")
    assert {row.worker_id for row in counts} == set(workers)
    assert all(row.n <= 3 for row in counts)
    small = await world.sql("select 1 from jobs where state = 'assigned' and tenant = 'small'")
    assert len(small) == 1


async def test_a_dead_worker_gets_nothing_although_its_heartbeat_is_fresh(world: World) -> None:
    dead, living = await world.worker(), await world.worker()
    async with scheduling(world) as loop:
        await eventually(lambda: _true(loop.figures.num_workers["usable"] == 2), 5)
        await asyncio.sleep(0.3)
        await world.kill(dead)
        await eventually(lambda: _true(loop.figures.num_workers["usable"] == 1), 5)
        jobs = [await world.submit() for _ in range(4)]
        for job in jobs:
            assert (await world.until(job, JobState.ASSIGNED, 5)).worker_id == living


async def test_a_worker_that_only_this_process_cannot_reach_is_used_after_its_next_heartbeat(world: World) -> None:
    worker_id = await world.worker()
    await world.kill(worker_id)
    job = await world.submit()
    async with scheduling(world) as loop:
        await eventually(lambda: _true(loop.figures.num_workers["not_usable"] == 1), 5)
        await asyncio.sleep(0.6)
        assert (await world.get(job)).state is JobState.QUEUED
        await world.processes.heartbeat(worker_id)
        await world.until(job, JobState.ASSIGNED, 5)


async def test_a_passed_deadline_fails_a_waiting_job(world: World) -> None:
    job = await world.submit(timeout_s=0.3)
    async with scheduling(world):
        ended = await world.until(job, JobState.FAILED, 5)
    assert ended.error is not None
    assert ended.error["code"] == "DEADLINE_EXCEEDED"


async def test_a_lost_lease_is_reaped_after_a_lease_of_contact(world: World) -> None:
    worker_id = await world.worker()
    job = await world.submit()
    async with scheduling(world, lease_s=1.0):
        await world.until(job, JobState.ASSIGNED, 5)
        await world.work.claim(worker_id, 10)
        # Nobody renews.
        await world.sql("update jobs set lease_until = now()")
        again = await world.until(job, JobState.QUEUED, 8)
        assert again.fence > job.fence + 1


async def test_old_rows_are_pruned(world: World) -> None:
    job = await world.submit()
    await world.jobs.cancel(job.id, tenant=None)
    await world.sql("update jobs set ended_at = now() - interval '30 days'")
    async with scheduling(world, job_retention_s=60.0):

        async def gone() -> bool:
            return not await world.sql("select 1 from jobs")

        await eventually(gone, 5)


async def test_the_lead_comes_back_after_its_connection_was_cut(world: World) -> None:
    await world.worker()
    async with scheduling(world) as loop:
        await eventually(lambda: _true(loop.figures.placing), 5)
        first = await world.leader_pid()
        await world.sql("select pg_terminate_backend(:pid)", pid=first)

        async def led_anew() -> bool:
            return loop.figures.placing and await world.leader_pid() not in (None, first)

        await eventually(led_anew, 5)
        await world.until(await world.submit(), JobState.ASSIGNED, 5)


async def test_of_two_one_leads_and_the_other_follows_when_it_ends(world: World) -> None:
    await world.worker()
    async with scheduling(world) as second:
        await eventually(lambda: _true(second.figures.placing), 5)
        async with scheduling(world) as third:
            await asyncio.sleep(0.5)
            assert not third.figures.placing
    async with scheduling(world) as first:
        await eventually(lambda: _true(first.figures.placing), 5)


async def test_placement_is_part_of_the_requests_trace(world: World) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    worker_id = await world.worker()
    spans = PlacementSpans(provider.get_tracer("test"))
    async with scheduling(world, spans=spans):
        untraced = await world.submit()
        traced = await world.submit(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        for job in (untraced, traced):
            await world.until(job, JobState.ASSIGNED, 5)
        await eventually(lambda: _true(bool(exporter.get_finished_spans())), 5)
    (span,) = exporter.get_finished_spans()
    assert span.name == "place jobs"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.attributes == {
        "octavo.job.id": str(traced.id),
        "octavo.job.fence": 1,
        "octavo.worker.id": str(worker_id),
    }
    assert span.start_time <= span.end_time
    provider.shutdown()


async def _true(value: bool) -> bool:
    return value
