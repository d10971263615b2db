import asyncio

import grpc
import pytest
from fakes.tiny_worker import TinyWorker, read, until
from sqlalchemy import text

from octavo_common.jobs.model import JobState, Resumption
from octavo_common.jobs.spec import GenerationResult

PROMPT = tuple(range(1, 12))
SLOW_S = 0.02


@pytest.fixture
def make(pg_dsn, bundle):
    return lambda **kwargs: TinyWorker(pg_dsn, bundle, **kwargs)


async def started(worker, call, num_tokens=3) -> list[int]:
    """Read until so many tokens have come."""
    got: list[int] = []
    async for message in call:
        got += message.token_ids
        if len(got) >= num_tokens:
            return got
    raise AssertionError("the stream ended early")


async def code_after(call) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        async for _ in call:
            pass
    return error.value.code()


@pytest.mark.parametrize("stage", ["queued_in_engine", "mid_prompt", "decoding"])
async def test_cancel_ends_a_job_at_every_stage_and_gives_its_blocks_back(make, stage):
    limits = {"max_sequences": 1, "max_chunk_tokens": 2} if stage != "decoding" else {}
    async with make(limits=limits, num_blocks=64) as worker:
        worker.executor.step_s = SLOW_S
        prompt = tuple(n % 90 for n in range(200)) if stage == "mid_prompt" else PROMPT
        first = await worker.start((3, 4, 5), 200) if stage == "queued_in_engine" else None
        if first is not None:
            await until(lambda: worker.stats, lambda stats: stats.num_running == 1)
        job = await worker.start(prompt, 200)
        if stage == "decoding":
            await started(worker, worker.stream(job))
        elif stage == "mid_prompt":
            await until(lambda: worker.stats, lambda stats: stats.num_prompt_tokens > 0)
        else:
            await until(lambda: worker.stats, lambda stats: stats.num_waiting == 1)
        reading = asyncio.create_task(read(worker.stream(job)))
        await worker.jobs.cancel(job.id, tenant=None)
        _, _, end = await reading
        assert end.cancelled
        row = await worker.get(job)
        assert row.state is JobState.CANCELLED
        if first is not None:
            await worker.jobs.cancel(first.id, tenant=None)
            await worker.ended(first)
        await until(lambda: worker.stats, lambda stats: stats.num_used_blocks == 0)


async def test_a_cancelled_job_that_was_only_assigned_never_starts(make):
    async with make() as worker:
        job = await worker.submit(PROMPT)
        await worker.jobs.cancel(job.id, tenant=None)
        assert (await worker.get(job)).state is JobState.CANCELLED


async def test_a_job_that_was_taken_away_is_dropped_and_goes_on_under_the_next_fence(make):
    async with make() as worker:
        worker.executor.step_s = SLOW_S
        job = await worker.start(PROMPT, 40)
        call = worker.stream(job)
        got = await started(worker, call)
        resumed = await worker.streams.resume(
            job.id, Resumption(owner=worker.gateway_id, fence=job.fence, emitted_ids=tuple(got))
        )
        assert resumed is not None
        assert await code_after(call) is grpc.StatusCode.ABORTED
        await until(lambda: worker.stats, lambda stats: stats.num_used_blocks == 0)
        worker.executor.step_s = 0.0
        again = await worker.assign(job)
        assert again.fence > job.fence
        tokens, _, _ = await read(worker.stream(again, prefix=got))
        assert [*got, *tokens] == worker.expected(PROMPT, 40)
        row = await worker.ended(again)
        result = GenerationResult.from_json(dict(row.result))
        assert list(result.token_ids) == worker.expected(PROMPT, 40)
        assert result.text == worker.tokenizer.decode(result.token_ids)
        assert result.usage.num_losses == 1
        # The old fence is over.
        assert await code_after(worker.stream(job)) is grpc.StatusCode.ABORTED


async def test_an_end_under_an_old_fence_changes_nothing(make):
    async with make() as worker:
        worker.executor.step_s = SLOW_S
        job = await worker.start(PROMPT, 10)
        call = worker.stream(job)
        await started(worker, call, 1)
        # Nobody is notified: the worker learns it from its own commit.
        async with worker.pool.begin() as connection:
            await connection.execute(
                text("update jobs set fence = fence + 1, state = 'queued', worker_id = null where id = :id"),
                {"id": job.id},
            )
        assert await code_after(call) is grpc.StatusCode.ABORTED
        row = await worker.get(job)
        assert (row.state, row.result) == (JobState.QUEUED, None)


async def test_a_stream_for_a_job_that_never_comes_is_told_to_read_the_row(make):
    async with make(changes={"lease_s": 1.0}) as worker:
        job = await worker.submit(PROMPT)
        assert await code_after(worker.stream(job, fence=1)) is grpc.StatusCode.ABORTED


async def test_a_passed_deadline_fails_the_job(make):
    async with make() as worker:
        worker.executor.step_s = SLOW_S
        job = await worker.start(PROMPT, 200, row={"timeout_s": 0.4})
        _, _, end = await read(worker.stream(job))
        assert end.failure.code == "DEADLINE_EXCEEDED"
        assert (await worker.get(job)).state is JobState.FAILED
        await until(lambda: worker.stats, lambda stats: stats.num_used_blocks == 0)


async def test_jobs_beyond_the_capacity_are_given_back(make):
    async with make(changes={"max_jobs": 2}) as worker:
        worker.executor.step_s = SLOW_S
        jobs = [await worker.submit((n, 1, 2), 100) for n in range(4)]
        for job in jobs:
            await worker.assign(job)
        rows = await until(
            lambda: asyncio.gather(*(worker.get(job) for job in jobs)),
            lambda rows: sorted(row.state for row in rows) == ["queued", "queued", "running", "running"],
        )
        assert all(row.total_losses == 0 for row in rows)
        for job in jobs:
            await worker.jobs.cancel(job.id, tenant=None)
        for job in jobs:
            await worker.ended(job)


async def test_a_draining_worker_gives_its_jobs_back_with_their_tokens(make):
    async with make() as worker:
        worker.executor.step_s = SLOW_S
        job = await worker.start(PROMPT, 60)
        call = worker.stream(job)
        got = await started(worker, call)
        worker.lifecycle.stop("SIGTERM")
        assert await code_after(call) in (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)
        assert await worker.task == 0
        row = await worker.get(job)
        assert (row.state, row.total_losses) == (JobState.QUEUED, 0)
        assert list(row.emitted_ids[: len(got)]) == got
        assert list(row.emitted_ids) == worker.expected(PROMPT, 60)[: len(row.emitted_ids)]
        assert not await worker.processes.list("worker", 3600.0)


async def test_no_token_leaves_while_leases_cannot_be_renewed_and_none_is_lost(make):
    async with make(changes={"lease_s": 1.5}) as worker:
        worker.executor.step_s = 0.03
        job = await worker.start(PROMPT, 150)
        got: list[int] = []

        async def follow():
            async for message in worker.stream(job):
                got.extend(message.token_ids)

        following = asyncio.create_task(follow())
        await until(lambda: len(got), lambda count: count >= 3)
        async with worker.pool.begin() as connection:
            # Heartbeats wait; everything else of the database answers.
            await connection.execute(text("lock table processes in exclusive mode"))
            await asyncio.sleep(1.4)
            num_left = len(got)
            await asyncio.sleep(0.4)
            assert len(got) == num_left
            # It goes on computing meanwhile.
            assert worker.stats.num_running == 1
        row = await worker.ended(job)
        expected = worker.expected(PROMPT, 150)
        assert list(GenerationResult.from_json(dict(row.result)).token_ids) == expected
        await following
        assert got == expected
        assert num_left < len(expected)


async def test_a_worker_whose_row_vanished_registers_again(make):
    async with make(changes={"lease_s": 0.6}) as worker:
        await worker.processes.unregister(worker.id)
        found = await until(lambda: worker.processes.list("worker", 3600.0), bool)
        assert found[0].id == worker.id


async def test_a_stuck_engine_ends_the_process_and_its_jobs_count_a_loss_later(make):
    async with make(changes={"lease_s": 0.9, "stuck_s": 0.3}) as worker:
        worker.executor.step_s = 3.0
        job = await worker.start(PROMPT, 10)
        assert await worker.task == 1
        assert (await worker.get(job)).state is JobState.RUNNING


async def test_connections_that_the_database_cuts_cost_no_job(make):
    async with make() as worker:
        worker.executor.step_s = SLOW_S
        jobs = [await worker.start((n, 5, 6), 30) for n in range(4)]
        for _ in range(5):
            async with worker.pool.begin() as connection:
                await connection.execute(
                    text(
                        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                        " and application_name in ('octavo-worker', 'octavo-listener')"
                    )
                )
            await asyncio.sleep(0.1)
        for n, job in enumerate(jobs):
            row = await worker.ended(job)
            assert list(GenerationResult.from_json(dict(row.result)).token_ids) == worker.expected((n, 5, 6), 30)


@pytest.mark.parametrize("max_jobs", [16, 1])
async def test_a_claim_that_the_database_has_forgotten_is_made_again_while_the_tokens_go_on(make, max_jobs):
    async with make(changes={"max_jobs": max_jobs}) as worker:
        worker.executor.step_s = SLOW_S
        job = await worker.start(PROMPT, 40)
        call = worker.stream(job)
        got = await started(worker, call)
        # As a crash leaves the row of a job that was assigned with its acceptance.
        async with worker.pool.begin() as connection:
            forget = text("update jobs set state = 'assigned', started_at = null where id = :id")
            await connection.execute(forget, {"id": job.id})
        tokens, _, end = await read(call)
        assert end.HasField("usage")
        assert got + tokens == worker.expected(PROMPT, 40)
        row = await worker.ended(job)
        assert (row.state, row.fence) == (JobState.SUCCEEDED, 1)
        events = [event.event for event in await worker.jobs.events(job.id, tenant=None)]
        assert events == ["queued", "assigned", "running", "running", "succeeded"]
