"""Schedulers as processes of their own: takeover, signals, what they say about themselves."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from scheduler_world import TOKEN, World, eventually

from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc
from octavo_common.exits import MISCONFIGURED
from octavo_common.jobs.model import JobState
from octavo_common.rpc.channel import internal_channel

pytestmark = pytest.mark.db


async def registered(world: World, count: int) -> list:
    async def all_there():
        found = await world.processes.list("scheduler", max_age_s=10)
        return found if len(found) == count else None

    return await eventually(all_there, 20)


async def status(address: str) -> scheduler_pb2.GetStatusResponse:
    async with internal_channel(address, TOKEN) as channel:
        return await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetStatus(
            scheduler_pb2.GetStatusRequest(), timeout=5, wait_for_ready=True
        )


async def placing(world: World, count: int) -> tuple[object, list]:
    async def one_leads():
        found = await registered(world, count)
        leaders = [p for p in found if (await status(p.address)).placing]
        return (leaders[0], [p for p in found if p is not leaders[0]]) if len(leaders) == 1 else None

    return await eventually(one_leads, 20)


async def test_the_standby_places_within_two_seconds_of_the_leaders_death(world: World, start_scheduler) -> None:
    processes = {p.pid: p for p in (start_scheduler(), start_scheduler())}
    await world.worker(max_jobs=100)
    leader, _ = await placing(world, 2)
    await world.until(await world.submit(), JobState.ASSIGNED, 5)

    processes[leader.pid].send_signal(signal.SIGKILL)
    died = time.monotonic()
    job = await world.submit()
    await world.until(job, JobState.ASSIGNED, 2.0)
    assert time.monotonic() - died < 2.0


async def test_a_paused_leader_that_wakes_up_changes_nothing_twice(world: World, start_scheduler) -> None:
    """Its session keeps the lock, so nobody else leads meanwhile; afterwards every job was assigned once."""
    process = start_scheduler()
    await world.worker(max_jobs=100)
    await placing(world, 1)
    process.send_signal(signal.SIGSTOP)
    jobs = [await world.submit() for _ in range(5)]
    await asyncio.sleep(0.3)
    process.send_signal(signal.SIGCONT)
    for job in jobs:
        assert (await world.until(job, JobState.ASSIGNED, 5)).fence == 1


async def test_sigterm_hands_over_and_leaves_no_row(world: World, start_scheduler) -> None:
    processes = {p.pid: p for p in (start_scheduler(), start_scheduler())}
    await world.worker(max_jobs=100)
    leader, (standby,) = await placing(world, 2)
    processes[leader.pid].send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(processes[leader.pid].wait, 5) == 0
    assert processes[leader.pid].stdout.read() == b""
    (left,) = await registered(world, 1)
    assert left.id == standby.id
    await world.until(await world.submit(), JobState.ASSIGNED, 2.0)


async def test_a_scheduler_says_what_it_does(world: World, start_scheduler, tmp_path: Path) -> None:
    start_scheduler()
    await world.worker()
    leader, _ = await placing(world, 1)
    await world.until(await world.submit(), JobState.ASSIGNED, 5)

    told = MessageToDict(await status(leader.address), preserving_proto_field_name=True)
    assert told == {"id": str(leader.id), "placing": True, "num_assigned": "1"}
    base = f"http://{leader.metrics_address}"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(f"{base}/metrics").read())).decode()
    assert "octavo_scheduler_placing 1.0" in text
    assert "octavo_jobs_assigned_total 1.0" in text
    assert 'octavo_rpc_server_duration_seconds_count{code="OK"' in text
    health = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(f"{base}/health").read()))
    assert health == {"status": "ok", "placing": True, "queued": 0, "database": True}
    lines = [json.loads(line) for line in (tmp_path / "scheduler-0.log").read_text().splitlines()]
    assert {line["service"] for line in lines} == {"octavo-scheduler"}
    assert "job.assigned" in {line["event"] for line in lines}


async def test_a_call_without_the_token_is_refused(world: World, start_scheduler) -> None:
    start_scheduler()
    (process,) = await registered(world, 1)
    async with grpc.aio.insecure_channel(process.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await scheduler_pb2_grpc.SchedulerServiceStub(channel).GetStatus(
                scheduler_pb2.GetStatusRequest(), timeout=5
            )
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_bad_settings_end_the_process_with_one_line(start_scheduler, tmp_path: Path) -> None:
    process = start_scheduler(OCTAVO_LEASE_S="never", OCTAVO_SCHEDULER_POL_S="1")
    assert await asyncio.to_thread(process.wait, 20) == MISCONFIGURED
    said = (tmp_path / "scheduler-0.log").read_text()
    assert "OCTAVO_LEASE_S" in said
    assert "Traceback" not in said
