"""What is told of a job that lost its worker: to its history, to its next worker, and to whoever asks for it."""

from __future__ import annotations

import pytest
from fakes.gateway_world import World
from fakes.scripted_worker import ScriptedWorker

from octavo.v1 import gateway_pb2, jobs_pb2
from octavo_common.jobs.model import Claimed

pytestmark = pytest.mark.db
DETACH = gateway_pb2.ON_DISCONNECT_DETACH


async def claim(worker: ScriptedWorker, job_id) -> Claimed:
    await worker.place(job_id)
    (claimed,) = await worker.work.claim(worker.id, 100)
    return claimed


async def test_the_history_says_why_a_job_moved_and_which_worker_it_lost(world: World) -> None:
    gateway, first, second = await world.gateway(), await world.worker(), await world.worker()
    client = world.client(gateway)
    stream = client.generate()
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 4)
    await stream.tokens(4)
    # Its connections break without a word.
    await first.server.stop(0)
    await second.take(job_id)
    request = jobs_pb2.ListJobEventsRequest(id=str(job_id))
    answer = await client.jobs.ListJobEvents(request, metadata=client.metadata)
    (resumed,) = [event for event in answer.events if event.event == "resumed"]
    assert resumed.process_id == str(gateway.gateway.id)
    assert (resumed.details["why"], resumed.details["worker"]) == ("worker_gone", str(first.id))
    await second.finish(job_id)
    await stream.rest()


async def test_the_next_worker_learns_when_the_stream_saw_its_first_token(world: World) -> None:
    gateway, first, second = await world.gateway(), await world.worker(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 1)
    await stream.tokens(1)
    seen_s = world.clock.monotonic()
    await first.release_tokens(job_id, 3)
    await stream.tokens(4)
    await first.kill()
    claimed = await claim(second, job_id)
    since_seen_s = world.clock.monotonic() - seen_s
    assert claimed.earlier_start_s is not None and claimed.earlier_token_s is not None
    # Between the first start and the moment at which the client had it.
    assert claimed.earlier_start_s <= claimed.earlier_token_s <= claimed.age_s - since_seen_s + 0.1
    assert claimed.wait_s <= claimed.age_s - claimed.earlier_token_s
    stream.call.cancel()


async def test_a_gateway_that_came_later_says_nothing_of_the_first_token(world: World) -> None:
    one, two, first = await world.gateway(), await world.gateway(), await world.worker()
    stream = world.client(one).generate(on_disconnect=DETACH)
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 4)
    await stream.tokens(4)
    await one.kill()
    again = world.client(two).resume(str(job_id), [])
    await again.tokens(4)
    await first.kill()
    second = await world.worker()
    claimed = await claim(second, job_id)
    assert claimed.job.emitted_ids == tuple(again.heard.token_ids)
    assert claimed.earlier_token_s is None
    again.call.cancel()


async def test_losses_are_all_losses_wherever_they_are_shown(world: World) -> None:
    gateway, workers = await world.gateway(), [await world.worker() for _ in range(2)]
    client = world.client(gateway)
    stream = client.generate()
    job_id = await stream.accepted()
    for num_losses, worker in enumerate(workers, start=1):
        # Each time with progress, so that none counts towards giving the job up.
        await worker.take(job_id)
        await worker.release_tokens(job_id, 1)
        await stream.tokens(num_losses)
        await worker.kill()
        await world.until(job_id, "queued")
    got = await client.jobs.GetJob(jobs_pb2.GetJobRequest(id=str(job_id)), metadata=client.metadata)
    listed = await client.jobs.ListJobs(jobs_pb2.ListJobsRequest(), metadata=client.metadata)
    assert [got.job.num_losses, *(job.num_losses for job in listed.jobs)] == [2, 2]
    assert (await world.job(job_id)).total_losses == 2
    stream.call.cancel()
