"""Streams through a real gateway: whatever happens to workers, clients and gateways, no token is lost or repeated."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from fakes.gateway_world import World, error_of
from fakes.scripted_worker import text_of

from octavo.v1 import gateway_pb2
from octavo_common.jobs.spec import JobFailure

pytestmark = pytest.mark.db
SCRIPT = [65 + i for i in range(10)]
DETACH = gateway_pb2.ON_DISCONNECT_DETACH


async def test_a_stream_brings_all_tokens_then_the_end(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 3)
    assert (await stream.tokens(3)).text == "ABC"
    await worker.finish(job_id)
    heard = await stream.rest()
    assert heard.token_ids == SCRIPT
    assert heard.text == text_of(SCRIPT)
    assert heard.finished.usage.completion_tokens == 10
    assert worker.num_streams == 1
    assert (await world.job(job_id)).stream_owner == gateway.gateway.id


async def test_a_stream_cut_by_its_worker_goes_on_at_the_same_worker(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 4)
    await stream.tokens(4)
    await worker.cut()
    await worker.release_tokens(job_id, 1)
    await stream.tokens(5)
    await worker.finish(job_id)
    heard = await stream.rest()
    assert heard.token_ids == SCRIPT
    assert heard.text == text_of(SCRIPT)
    assert "resumed" not in await world.event_names(job_id)
    assert worker.first_tokens[-1] == 4


async def test_a_stream_goes_on_at_another_worker_within_two_seconds_of_a_death(world: World) -> None:
    gateway, first, second = await world.gateway(), await world.worker(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 4)
    await stream.tokens(4)
    started = world.clock.monotonic()
    await first.kill()
    await second.take(job_id)
    assert second.logs[job_id].ids == SCRIPT[:4]
    await second.release_tokens(job_id, 1)
    await stream.tokens(5)
    assert world.clock.monotonic() - started < 2.0
    await second.finish(job_id)
    heard = await stream.rest()
    assert heard.token_ids == SCRIPT
    assert heard.text == text_of(SCRIPT)
    assert second.first_tokens == [4]
    assert (await world.job(job_id)).total_losses == 1


async def test_a_worker_that_dies_before_it_claims_is_replaced(world: World) -> None:
    gateway, first, second = await world.gateway(), await world.worker(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await first.kill()
    await first.place(job_id)
    await second.take(job_id)
    await second.finish(job_id)
    assert (await stream.rest()).token_ids == SCRIPT


async def test_a_job_that_its_worker_has_lost_is_resumed(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 2)
    await stream.tokens(2)
    await worker.drop(job_id)
    await world.until(job_id, "queued")
    await worker.take(job_id)
    await worker.finish(job_id)
    assert (await stream.rest()).token_ids == SCRIPT
    assert "resumed" in await world.event_names(job_id)


async def test_a_worker_with_other_tokens_gets_the_ones_that_were_sent(world: World) -> None:
    """After a reap the next attempt begins anew and makes other tokens than the stream has sent."""
    gateway, first = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 3)
    await stream.tokens(3)
    # The row is taken from the worker without the gateway's ids, as the reaper does for a gateway that looked dead.
    await world.sql("update jobs set state = 'queued', fence = fence + 1, worker_id = null where id = :id", id=job_id)
    other = await world.worker(lambda job: [*job.emitted_ids, *(97 + i for i in range(10 - len(job.emitted_ids)))])
    await other.take(job_id)
    await other.release_tokens(job_id, 5)
    await world.until(job_id, "queued")
    assert (await world.job(job_id)).emitted_ids == tuple(SCRIPT[:3])
    await other.take(job_id)
    await other.finish(job_id)
    heard = await stream.rest()
    assert heard.token_ids == [*SCRIPT[:3], *range(97, 104)]


async def test_a_row_that_ended_meanwhile_gives_the_rest(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 4)
    await stream.tokens(4)
    log = worker.logs[job_id]
    log.gone = True
    await worker.finish(job_id, tell=False)
    await worker.kill()
    heard = await stream.rest()
    assert heard.token_ids == SCRIPT
    assert heard.text == text_of(SCRIPT)
    assert heard.finished.usage.seed == 7


async def test_a_row_that_ended_with_other_tokens_is_never_spliced(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 4)
    await stream.tokens(4)
    log = worker.logs[job_id]
    log.gone, log.script = True, [97] * 10
    log.ids.clear()
    await worker.finish(job_id, tell=False)
    await worker.kill()
    code, details, reason = await error_of(stream.call)
    assert (code, reason) == (grpc.StatusCode.ABORTED, "STREAM_DIVERGED")
    assert str(job_id) in details


async def test_a_silent_worker_is_left_when_its_heartbeat_is_old(world: World) -> None:
    """A paused process keeps its connections open: only its heartbeat tells."""
    gateway = await world.gateway(lease_s=0.3)
    first, second = await world.worker(lease_s=0.3), await world.worker(lease_s=60.0)
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 2)
    await stream.tokens(2)
    await world.until(job_id, "queued")
    await second.take(job_id)
    await second.finish(job_id)
    assert (await stream.rest()).token_ids == SCRIPT
    # It wakes up late and changes nothing.
    assert not await first.finish(job_id)


async def test_a_failed_job_fails_its_stream_with_the_same_error(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    stream = world.client(gateway).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    failure = JobFailure(code="BAD_ROW", message="it is broken", hint="repair it", status="INVALID_ARGUMENT")
    await worker.fail(job_id, failure, grpc_code=3)
    assert await error_of(stream.call) == (grpc.StatusCode.INVALID_ARGUMENT, "it is broken", "BAD_ROW")


async def test_a_slow_reader_gets_everything_and_hinders_nobody(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    client = world.client(gateway)
    slow, quick = client.generate(), client.generate()
    slow_id, quick_id = await slow.accepted(), await quick.accepted()
    for job_id in (slow_id, quick_id):
        await worker.take(job_id)
    for count in range(1, 10):
        for job_id in (slow_id, quick_id):
            await worker.release_tokens(job_id, 1)
        await quick.tokens(count)
    for job_id in (slow_id, quick_id):
        await worker.finish(job_id)
    assert (await quick.rest()).token_ids == SCRIPT
    assert (await slow.rest()).token_ids == SCRIPT


async def test_a_client_that_leaves_cancels_its_job_at_once(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    client = world.client(gateway)
    queued, running = client.generate(), client.generate()
    queued_id, running_id = await queued.accepted(), await running.accepted()
    await worker.take(running_id)
    await worker.release_tokens(running_id, 1)
    await running.tokens(1)
    queued.call.cancel()
    running.call.cancel()
    await world.until(queued_id, "cancelled")
    async with asyncio.timeout(5):
        while not (await world.job(running_id)).cancel_requested:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        while worker.num_attached or gateway.gateway.hub.num_followed:
            await asyncio.sleep(0.01)


async def test_a_client_that_detaches_comes_back_for_the_rest(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    client = world.client(gateway)
    stream = client.generate(on_disconnect=DETACH)
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 3)
    await stream.tokens(3)
    stream.call.cancel()
    await worker.release_tokens(job_id, 2)
    again = client.resume(str(job_id), stream.heard.token_ids)
    await again.accepted()
    assert not again.heard.created
    await again.tokens(5)
    await worker.finish(job_id)
    heard = await again.rest()
    assert heard.token_ids == SCRIPT
    assert stream.heard.text + heard.text == text_of(SCRIPT)
    assert not (await world.job(job_id)).cancel_requested


async def test_after_the_grace_nobody_owns_a_detached_stream(world: World) -> None:
    gateway, worker = await world.gateway(), await world.worker()
    gateway.gateway.hub._grace_s = 0.05
    stream = world.client(gateway).generate(on_disconnect=DETACH)
    job_id = await stream.accepted()
    await worker.take(job_id)
    stream.call.cancel()
    async with asyncio.timeout(5):
        while (await world.job(job_id)).stream_owner is not None:
            await asyncio.sleep(0.01)
    assert (await world.job(job_id)).state == "running"
    assert gateway.gateway.hub.num_followed == 0
    await worker.finish(job_id)
    # And the result is there for who asks later: with the ids it has, or with none.
    resumed = world.client(gateway).resume(str(job_id), SCRIPT[:4])
    heard = await resumed.rest()
    assert (heard.token_ids, heard.text) == (SCRIPT, text_of(SCRIPT[4:]))


async def test_another_gateway_takes_over_from_a_killed_one(world: World) -> None:
    one, two, worker = await world.gateway(), await world.gateway(), await world.worker()
    stream = world.client(one).generate(on_disconnect=DETACH)
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 4)
    await stream.tokens(4)
    await one.kill()
    assert not (await world.job(job_id)).cancel_requested
    again = world.client(two).resume(str(job_id), stream.heard.token_ids)
    await again.accepted()
    assert (await world.job(job_id)).stream_owner == two.gateway.id
    await worker.release_tokens(job_id, 1)
    await again.tokens(5)
    # The new owner also does the resuming.
    third = await world.worker()
    await worker.kill()
    await third.take(job_id)
    await third.finish(job_id)
    heard = await again.rest()
    assert heard.token_ids == SCRIPT
    assert stream.heard.text + heard.text == text_of(SCRIPT)


async def test_gateway_and_worker_both_die_and_the_client_goes_on(world: World) -> None:
    one, two, first = await world.gateway(), await world.gateway(), await world.worker()
    stream = world.client(one).generate(on_disconnect=DETACH)
    job_id = await stream.accepted()
    await first.take(job_id)
    await first.release_tokens(job_id, 4)
    await stream.tokens(4)
    await one.kill()
    await first.kill()
    second = await world.worker()
    again = world.client(two).resume(str(job_id), stream.heard.token_ids)
    await again.accepted()
    await second.take(job_id)
    assert second.logs[job_id].ids == SCRIPT[:4]
    await second.finish(job_id)
    assert (await again.rest()).token_ids == SCRIPT


async def test_a_cancel_mode_client_that_moved_to_another_gateway_is_not_gone(world: World) -> None:
    one, two, worker = await world.gateway(), await world.gateway(), await world.worker()
    stream = world.client(one).generate()
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 2)
    await stream.tokens(2)
    again = world.client(two).resume(str(job_id), stream.heard.token_ids, detach=False)
    await again.accepted()
    stream.call.cancel()
    async with asyncio.timeout(5):
        while one.gateway.hub.num_followed:
            await asyncio.sleep(0.01)
    await one.gateway.hub._chores.finish()
    await worker.finish(job_id)
    assert (await again.rest()).token_ids == SCRIPT


async def test_the_same_idempotency_key_joins_the_job_from_its_first_token(world: World) -> None:
    one, two, worker = await world.gateway(), await world.gateway(), await world.worker()
    client = world.client(one)
    fields = {"idempotency_key": "k", "on_disconnect": DETACH}
    first = client.generate(**fields)
    job_id = await first.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 3)
    await first.tokens(3)
    joined, elsewhere = client.generate(**fields), world.client(two).generate(**fields)
    for stream in (joined, elsewhere):
        assert await stream.accepted() == job_id
        assert not stream.heard.created
        assert (await stream.tokens(3)).text == "ABC"
    await worker.finish(job_id)
    for stream in (first, joined, elsewhere):
        assert (await stream.rest()).token_ids == SCRIPT
    # Ended, it comes from the row.
    await worker.kill()
    late = client.generate(**fields)
    heard = await late.rest()
    assert (heard.job_id, heard.token_ids, heard.text) == (str(job_id), SCRIPT, text_of(SCRIPT))
    code, _, reason = await error_of(client.generate(idempotency_key="k", prompt="other").call)
    assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_KEY_REUSED")


async def test_a_draining_gateway_hands_its_streams_over(world: World) -> None:
    one, two, worker = await world.gateway(), await world.gateway(), await world.worker()
    stream = world.client(one).generate(on_disconnect=DETACH)
    job_id = await stream.accepted()
    await worker.take(job_id)
    await worker.release_tokens(job_id, 2)
    await stream.tokens(2)
    await one.gateway.hub.hand_over()
    code, details, reason = await error_of(stream.call)
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert str(job_id) in details
    assert (await world.job(job_id)).stream_owner is None
    again = world.client(two).resume(str(job_id), stream.heard.token_ids)
    await again.accepted()
    await worker.finish(job_id)
    assert (await again.rest()).token_ids == SCRIPT


async def test_the_deadline_of_a_call_becomes_its_jobs_unless_it_detaches(world: World) -> None:
    gateway = await world.gateway()
    await world.worker()
    client = world.client(gateway)
    bound, free = client.generate(timeout=30.0), client.generate(timeout=30.0, on_disconnect=DETACH)
    bound_id, free_id = await bound.accepted(), await free.accepted()
    job = await world.job(bound_id)
    assert job.deadline is not None
    # On the wire a time is rounded up, to tenths of a second at this length (gRPC's `grpc-timeout`).
    assert 28 < (job.deadline - job.created_at).total_seconds() <= 30.1
    assert (await world.job(free_id)).deadline is None
    bound.call.cancel()
    free.call.cancel()


async def test_a_call_whose_time_is_over_leaves_the_end_to_the_jobs_deadline(world: World) -> None:
    gateway = await world.gateway()
    await world.worker()
    stream = world.client(gateway).generate(timeout=0.4)
    job_id = await stream.accepted()
    assert (await error_of(stream.call))[0] == grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(5):
        while gateway.gateway.hub.num_followed or (await world.job(job_id)).stream_owner is not None:
            await asyncio.sleep(0.01)
    assert not (await world.job(job_id)).cancel_requested
