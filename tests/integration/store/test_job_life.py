"""One job through the real table: accepted, placed, taken, ended; and every way to end it early."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from store_world import DIGEST, World, new_job, result

from octavo_common import ids
from octavo_common.errors import FailedPrecondition, InvalidArgument, JobNotFound, NotFound
from octavo_common.jobs.model import Held, JobState, Principal, TenantLimits
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.jobs.transitions import CANCELLED


async def test_a_job_goes_from_submit_to_success_and_keeps_its_history(world: World) -> None:
    worker = await world.worker()
    job = await world.submit(timeout_s=60)
    assert (job.state, job.fence, job.prompt_ids) == (JobState.QUEUED, 0, (1, 2, 3))

    (queued,) = await world.placement.queue(10)
    assert (queued.id, queued.resumed, queued.max_tokens, queued.model_digest) == (job.id, False, 8, DIGEST)
    (free,) = await world.placement.fleet()
    assert (free.id, free.max_jobs, free.jobs) == (worker, 8, ())

    assigned = await world.assign(job, worker)
    assert (assigned.state, assigned.fence, assigned.worker_id) == (JobState.ASSIGNED, 1, worker)
    (claimed,) = await world.work.claim(worker, 10)
    assert claimed.job.state is JobState.RUNNING
    assert claimed.deadline_in_s is not None
    assert 50 < claimed.deadline_in_s < 60
    assert 0 <= claimed.age_s < 10
    assert claimed.job.numerics_id == "float32/test"

    assert await world.work.finish(job.id, 1, result=result(7, 8))
    ended = await world.get(job)
    assert (ended.state, ended.fence, ended.result) == (JobState.SUCCEEDED, 1, result(7, 8).to_json())
    assert ended.ended_at is not None
    assert await world.event_names(job) == ["queued", "assigned", "running", "succeeded"]


async def test_cancelling_a_queued_or_assigned_job_ends_it_at_once(world: World) -> None:
    worker = await world.worker()
    queued, assigned = await world.submit(), await world.assign(await world.submit(), worker)
    for job in (queued, assigned):
        cancelled = await world.jobs.cancel(job.id, tenant="acme")
        assert (cancelled.state, cancelled.error) == (JobState.CANCELLED, CANCELLED.to_json())
    assert await world.work.claim(worker, 10) == []
    assert await world.placement.queue(10) == []


async def test_cancelling_a_running_job_asks_its_worker_by_heartbeat_and_keeps_a_result_that_was_first(
    world: World,
) -> None:
    worker = await world.worker()
    first, second = await world.running(worker), await world.running(worker)
    for job in (first, second):
        assert (await world.jobs.cancel(job.id, tenant="acme")).state is JobState.RUNNING
    held = [Held(job.id, job.fence, 0) for job in (first, second)]
    assert (await world.processes.heartbeat(worker, held=held)).cancelled == {first.id, second.id}
    assert await world.work.finish(first.id, first.fence, cancelled=True)
    assert await world.work.finish(second.id, second.fence, result=result(1))
    assert (await world.get(first)).state is JobState.CANCELLED
    assert (await world.jobs.cancel(second.id, tenant="acme")).state is JobState.SUCCEEDED
    assert await world.event_names(first) == ["queued", "assigned", "running", "cancel_requested", "cancelled"]


async def test_a_job_is_invisible_to_other_tenants_and_visible_to_admins(world: World) -> None:
    job = await world.submit()
    for call in (world.jobs.get, world.jobs.cancel, world.jobs.retry, world.jobs.events):
        with pytest.raises(JobNotFound):
            await call(job.id, tenant="other")
    assert (await world.get(job)).state is JobState.QUEUED
    with pytest.raises(JobNotFound):
        await world.get(ids.new_job_id())


async def test_lists_are_newest_first_paged_filtered_and_light(world: World) -> None:
    made = [await world.submit(id=UUID(int=number)) for number in range(1, 6)]
    await world.submit(tenant="other", id=UUID(int=9))
    await world.jobs.cancel(made[0].id, tenant=None)
    page = await world.jobs.list(tenant="acme", limit=3)
    assert [job.id.int for job in page] == [5, 4, 3]
    assert (page[0].prompt_ids, page[0].num_prompt_tokens, page[0].payload, page[0].result) == ((), 3, {}, None)
    rest = await world.jobs.list(tenant="acme", limit=3, before=page[-1].id)
    assert [job.id.int for job in rest] == [2, 1]
    assert [j.id.int for j in await world.jobs.list(tenant=None, states=[JobState.CANCELLED])] == [1]
    assert len(await world.jobs.list(tenant=None, model="tiny")) == 6
    assert await world.jobs.list(tenant=None, model="large") == []


async def test_retry_copies_an_ended_job_with_its_time_and_refuses_others(world: World) -> None:
    job = await world.submit(timeout_s=60, idempotency_key="k", priority=3, cache_salt="s")
    with pytest.raises(FailedPrecondition):
        await world.jobs.retry(job.id, tenant="acme")
    await world.jobs.cancel(job.id, tenant="acme")
    copy = await world.jobs.retry(job.id, tenant="acme")
    assert copy.id != job.id
    assert (copy.state, copy.idempotency_key, copy.priority) == (JobState.QUEUED, None, 3)
    assert (copy.prompt_ids, copy.payload, copy.cache_salt) == (job.prompt_ids, job.payload, "s")
    assert copy.deadline is not None
    assert (copy.deadline - copy.created_at).total_seconds() == pytest.approx(60)
    assert (await world.event_names(job))[-1] == "retried"


async def test_contents_go_after_the_retention_time_and_figures_later(world: World) -> None:
    worker = await world.worker()
    said = {
        "stop": ["x"],
        "bad_words": [[7]],
        "logit_bias": [[5, 1.0]],
        "allowed_token_ids": [5],
        "stop_token_ids": [9],
    }
    job = await world.running(worker, payload={**new_job().payload, **said})
    await world.work.finish(job.id, job.fence, result=result(1, 2))
    await world.age(job.id, 100)
    assert (await world.placement.prune(retention_s=200)).num_contents == 0
    assert (await world.placement.prune(retention_s=50)).num_contents == 1
    pruned = await world.get(job)
    assert (pruned.content_kept, pruned.prompt_ids, pruned.num_prompt_tokens) == (False, (), 3)
    assert pruned.result is not None
    assert set(pruned.result) == {"usage", "finish_reason"}
    assert not said.keys() & pruned.payload.keys()
    assert GenerationSpec.from_json(dict(pruned.payload)).logit_bias == ()
    with pytest.raises(FailedPrecondition):
        await world.jobs.retry(job.id, tenant="acme")
    await world.age(job.id, 1000)
    assert (await world.placement.prune(retention_s=50)).num_jobs == 1
    with pytest.raises(JobNotFound):
        await world.get(job)
    assert await world.sql("select * from job_events") == []


async def test_an_ended_job_counts_the_tokens_of_all_its_answers(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    first = result(1, 2)
    both = replace(first, usage=replace(first.usage, completion_tokens=5), others=first.choices)
    await world.work.finish(job.id, job.fence, result=both)
    assert (await world.get(job)).num_tokens == 5


async def test_pruning_takes_the_oldest_first_and_no_more_than_a_chunk(world: World) -> None:
    made = [await world.submit() for _ in range(5)]
    for number, job in enumerate(made):
        await world.jobs.cancel(job.id, tenant=None)
        await world.age(job.id, 1000 - number)
    pruned = await world.placement.prune(retention_s=1, limit=2, delete_after_s=1)
    assert (pruned.num_contents, pruned.num_jobs) == (2, 2)
    assert {job.id for job in await world.jobs.list(tenant=None)} == {job.id for job in made[2:]}


@pytest.mark.parametrize("odd", ["a\x00b", "\ud800 alone", "\uf8ff0000", "é😀\x00\uf8ff\udfff"])
async def test_texts_that_jsonb_cannot_hold_come_back_as_they_were(world: World, odd: str) -> None:
    worker = await world.worker()
    payload = {**new_job().payload, "stop": [odd]}
    job = await world.running(worker, payload=payload)
    assert job.payload["stop"] == [odd]
    assert await world.work.finish(job.id, job.fence, result=replace(result(1), text=odd))
    ended = await world.get(job)
    assert ended.result is not None
    assert ended.result["text"] == odd


async def test_a_value_that_no_column_holds_is_the_callers_fault(world: World) -> None:
    with pytest.raises(InvalidArgument):
        await world.submit(idempotency_key="a\x00b")


async def test_artifacts_and_keys_are_kept(world: World) -> None:
    data = bytes(range(256)) * 1000
    for _ in range(2):
        await world.artifacts.put("digest", "application/octet-stream", data)
    assert await world.artifacts.get("digest") == data
    assert not await world.artifacts.has("other")
    with pytest.raises(NotFound):
        await world.artifacts.get("other")

    key = await world.keys.create("acme", "user", "laptop")
    await world.tenants.set_limits("acme", TenantLimits(max_running=2))
    principal = await world.keys.authenticate(key)
    assert principal == Principal(tenant="acme", scope="user", limits=TenantLimits(max_running=2))
    assert await world.keys.authenticate(key + "x") is None
    assert key not in str(await world.sql("select * from api_keys"))
    (listed,) = await world.keys.list("acme")
    await world.keys.revoke(listed.id)
    assert await world.keys.authenticate(key) is None
    with pytest.raises(NotFound):
        await world.keys.revoke("nothing")
