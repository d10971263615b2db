"""Notifications: who is woken, and that a lost connection is found and made again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
from store_world import World, result

from octavo_common.clock import SystemClock
from octavo_common.jobs.model import Assignment, Held
from octavo_common.jobs.transitions import JOBS_CHANNEL, gateway_channel, worker_channel
from octavo_common.store import Listener


async def settled(listener: Listener) -> None:
    """Past the wake-up that follows each connect."""
    assert await listener.wait(10)
    assert listener.connected


async def test_every_step_of_a_job_wakes_who_has_to_act(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    clock = SystemClock()
    async with (
        Listener(world.dsn, [JOBS_CHANNEL], clock) as on_jobs,
        Listener(world.dsn, [worker_channel(worker)], clock) as on_worker,
        Listener(world.dsn, [gateway_channel(gateway)], clock) as on_gateway,
    ):
        listeners = (on_jobs, on_worker, on_gateway)
        for listener in listeners:
            await settled(listener)

        async def woken_by(act: Callable[[], Awaitable[object]]) -> list[bool]:
            await act()
            return [await listener.wait(0.3) for listener in listeners]

        job = await world.submit(stream_owner=gateway)
        assert [await listener.wait(0.3) for listener in listeners] == [True, False, False]
        assignment = Assignment(job_id=job.id, fence=0, worker_id=worker)
        assert await woken_by(lambda: world.placement.assign([assignment])) == [False, True, True]
        assert await woken_by(lambda: world.work.claim(worker, 1)) == [False, False, False]
        assert await woken_by(lambda: world.jobs.cancel(job.id, tenant=None)) == [False, True, True]
        assert await woken_by(lambda: world.work.finish(job.id, 1, result=result(1))) == [True, False, True]


async def test_a_job_that_was_lost_without_progress_wakes_the_scheduler_when_it_makes_some(world: World) -> None:
    worker = await world.worker()
    async with Listener(world.dsn, [JOBS_CHANNEL], SystemClock()) as listener:
        innocent, suspect = await world.running(worker), await world.running(worker)
        await world.age(suspect.id, 60)
        await world.placement.reap()
        await world.age(suspect.id, 10)
        suspect = await world.assign(suspect, worker)
        await world.work.claim(worker, 1)
        while await listener.wait(0.3):
            pass

        async def beat(num_tokens: int) -> bool:
            held = [Held(job.id, job.fence, num_tokens) for job in (innocent, suspect)]
            assert not (await world.processes.heartbeat(worker, held=held)).lost
            return await listener.wait(0.3)

        assert [await beat(num_tokens) for num_tokens in (0, 1, 2)] == [False, True, False]


async def test_a_listener_whose_backend_is_ended_listens_again_within_1_2_seconds(world: World) -> None:
    async with Listener(world.dsn, [JOBS_CHANNEL], SystemClock()) as listener:
        await settled(listener)
        pid = listener.backend_pid
        await world.sql("select pg_terminate_backend(:pid)", pid=pid)
        # The wake-up after the reconnect makes its reader look at once.
        assert await listener.wait(1.2)
        assert listener.connected
        assert listener.backend_pid != pid
        await world.submit()
        assert await listener.wait(1.2)


async def test_connections_do_not_pile_up_when_a_listener_loses_its_own_often(world: World) -> None:
    async with Listener(world.dsn, [JOBS_CHANNEL], SystemClock()) as listener:
        for _ in range(20):
            await settled(listener)
            await world.sql("select pg_terminate_backend(:pid)", pid=listener.backend_pid)
        await settled(listener)
        count = "select count(*) as num from pg_stat_activity where application_name = 'octavo-listener'"
        (left,) = await world.sql(count + " and datname = current_database()")
        assert left.num <= 2
    assert not listener.connected


async def test_notifications_between_two_waits_are_one_and_silence_is_told(world: World) -> None:
    async with Listener(world.dsn, [JOBS_CHANNEL], SystemClock(), ping_s=0.1) as listener:
        await settled(listener)
        for _ in range(3):
            await world.submit()
        await asyncio.sleep(0.2)
        assert await listener.wait(1)
        assert not await listener.wait(0.5)  # pings do not wake


async def test_a_listener_without_a_server_waits_and_stops_in_good_order() -> None:
    dsn = "postgresql://nobody@127.0.0.1:9/none"
    async with Listener(dsn, [JOBS_CHANNEL], SystemClock()) as listener:
        assert not await listener.wait(0.3)
        assert not listener.connected


async def test_a_job_is_accepted_while_another_session_holds_an_old_snapshot(world: World) -> None:
    async with await psycopg.AsyncConnection.connect(world.dsn) as old:
        await old.execute("set transaction isolation level repeatable read")
        await old.execute(f"listen {JOBS_CHANNEL}")
        await old.execute("select 1")
        worker = await world.worker()
        for _ in range(20):
            job = await world.running(worker)
            assert await world.work.finish(job.id, job.fence, result=result(1))
