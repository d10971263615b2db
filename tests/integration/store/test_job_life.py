"""One job through the real table: accepted, placed, taken, ended; and every way to end it early."""

from __future__ import annotations

from store_world import DIGEST, World, result

from octavo_common.jobs.model import JobState


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
