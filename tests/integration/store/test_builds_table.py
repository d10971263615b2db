"""Jobs of the kind that edge builders take by themselves: one taker each, within limits, ended under their fence."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from uuid import UUID

from store_world import World

from octavo_common import ids
from octavo_common.jobs.builds import (
    BuildFile,
    BuildGate,
    BuildProgress,
    BuildResult,
    BuildSpec,
    BuildStage,
    TensorLoss,
)
from octavo_common.jobs.model import EDGE_BUILD, Held, Job, JobState, NewProcess, TenantLimits
from octavo_common.jobs.spec import JobFailure

SPEC = BuildSpec(model="m", targets=("onnxruntime",), recipe="", recipe_yaml="name: mine", options={"attention": "sha"})
STAGE = BuildStage(
    stage="quantise",
    cached=False,
    seconds=1.5,
    size_bytes=10,
    peak_memory_bytes=20,
    metrics={"sqnr_db": float("inf"), "kl_nats": 0.25},
    gates=(BuildGate(limit="kl_nats <= 0.1", value=0.25, passes=False), BuildGate(limit="x", value=None, passes=False)),
    warnings=("few",),
    worst=(TensorLoss(tensor="logits", sqnr_db=12.5),),
    target="coreml",
)
RESULT = BuildResult(
    outcome="compiled+run",
    seconds=2.0,
    store="s",
    stages=(STAGE,),
    files=(BuildFile(name="a/b.onnx", size_bytes=3, sha256="0" * 64),),
)
FAILURE = JobFailure(code="GATE_FAILED", message="worse")


def test_specs_progress_and_results_come_back_from_json() -> None:
    assert BuildSpec.from_json(SPEC.to_json()) == SPEC
    assert BuildResult.from_json(RESULT.to_json()) == RESULT
    # Of a builder that did not say it yet.
    earlier = {name: value for name, value in STAGE.to_json().items() if name != "target"}
    assert BuildStage.from_json(earlier) == replace(STAGE, target="")
    progress = BuildProgress(
        stage="adapt", done=1, total=2, what="layer 0", num_stages_done=3, elapsed_s=0.5, target="t"
    )
    assert BuildProgress.from_json(progress.to_json()) == progress


async def build(world: World, **changes: object) -> Job:
    values = {"kind": EDGE_BUILD, "model_digest": "", "prompt_ids": (), "payload": SPEC.to_json()}
    return await world.submit(**{**values, **changes})


async def builder(world: World) -> UUID:
    process_id = ids.new_process_id()
    await world.processes.register(NewProcess(id=process_id, role="edge_builder", lease_s=15.0))
    return process_id


async def take(world: World, process_id: UUID) -> Job | None:
    claimed = await world.builds.take(process_id, lease_s=15.0)
    return None if claimed is None else claimed.job


async def test_each_build_is_taken_once_however_many_builders_ask(world: World) -> None:
    builders = [await builder(world) for _ in range(4)]
    waiting = {(await build(world)).id for _ in range(3)}
    taken = await asyncio.gather(*(take(world, one) for one in builders))
    assert {job.id for job in taken if job is not None} == waiting
    for job in taken:
        if job is not None:
            assert (job.state, job.fence, job.worker_id in builders) == (JobState.RUNNING, 1, True)
            assert BuildSpec.from_json(job.payload) == SPEC
            assert await world.event_names(job) == ["queued", "running"]


async def test_a_list_has_none_of_what_may_be_large(world: World) -> None:
    large = replace(SPEC, recipe_texts={"a": "x" * 1000}, recipe_yaml="y" * 1000, target_options={"soc": "z" * 1000})
    job = await build(world, payload=large.to_json())
    (listed,) = await world.jobs.list(tenant="acme", kind=EDGE_BUILD)
    assert listed.id == job.id
    assert len(json.dumps(listed.payload)) < 200
    told = BuildSpec.from_json({**listed.payload, "model": listed.model})
    assert told == BuildSpec(model=job.model, targets=("onnxruntime",), recipe="")
    assert BuildSpec.from_json((await world.get(job.id)).payload) == large
    (light,) = await world.jobs.list(tenant="acme")
    assert light.payload == {}


async def test_larger_priority_and_then_age_decide(world: World) -> None:
    old, new, urgent = await build(world), await build(world), await build(world, priority=5)
    order: list[UUID] = []
    while (job := await take(world, await builder(world))) is not None:
        order.append(job.id)
    assert order == [urgent.id, old.id, new.id]


async def test_no_scheduler_sees_a_build_and_no_builder_a_generation(world: World) -> None:
    # Even where a worker serves what the row says.
    await world.worker()
    job = await build(world, model_digest="d" * 64)
    assert await world.placement.queue(10) == []
    assert not (await world.due()).queued
    generation = await world.submit()
    assert [queued.id for queued in await world.placement.queue(10)] == [generation.id]
    taken = await take(world, await builder(world))
    assert taken is not None
    assert taken.id == job.id
    assert await take(world, await builder(world)) is None


async def test_a_tenant_runs_no_more_builds_than_it_may_of_any_kind(world: World) -> None:
    await world.tenants.set_limits("acme", TenantLimits(max_running=1))
    first, process_id = await build(world), await builder(world)
    await build(world)
    taken = await asyncio.gather(*(take(world, one) for one in (process_id, await builder(world))))
    assert [job.id for job in taken if job is not None] == [first.id]
    other = await build(world, tenant="globex")
    foreign = await take(world, await builder(world))
    assert foreign is not None
    assert foreign.id == other.id


async def test_a_take_whose_answer_was_lost_is_found_again(world: World) -> None:
    await build(world)
    process_id = await builder(world)
    job = await take(world, process_id)
    assert job is not None
    again = await take(world, process_id)
    assert again is not None
    assert (again.id, again.fence) == (job.id, job.fence)
    assert await world.builds.end(job.id, job.fence, result=RESULT)
    assert await take(world, process_id) is None


async def test_a_dead_builders_build_is_reaped_and_what_the_dead_one_says_changes_nothing(world: World) -> None:
    await build(world)
    dead, living = await builder(world), await builder(world)
    job = await take(world, dead)
    assert job is not None
    await world.processes.heartbeat(dead, held=[Held(job.id, job.fence, 1)])
    assert await world.placement.reap() == []
    await world.age(job.id, 16)
    (reaped,) = await world.placement.reap()
    # The stage that had ended is progress.
    assert (reaped.state, reaped.losses) == (JobState.QUEUED, 0)
    again = await take(world, living)
    assert again is not None
    assert (again.id, again.fence) == (job.id, job.fence + 2)
    assert not await world.builds.end(job.id, job.fence, result=RESULT)
    assert (await world.processes.heartbeat(dead, held=[Held(job.id, job.fence, 2)])).lost == {job.id}
    assert await world.builds.end(again.id, again.fence, result=RESULT)
    ended = await world.get(job.id)
    assert ended.result is not None
    assert BuildResult.from_json(ended.result) == RESULT


async def test_a_failed_build_keeps_what_it_has_told_until_retention_takes_the_contents(world: World) -> None:
    await build(world)
    job = await take(world, await builder(world))
    assert job is not None
    assert await world.builds.end(job.id, job.fence, result=RESULT, failure=FAILURE)
    assert await world.builds.end(job.id, job.fence, result=RESULT, failure=FAILURE)
    ended = await world.get(job.id)
    assert ended.state is JobState.FAILED
    assert ended.error is not None
    assert ended.result is not None
    assert await world.builds.kept([job.id, ids.new_job_id()]) == {job.id}
    await world.age(job.id, 100)
    assert (await world.placement.prune(50)).num_contents == 1
    pruned = await world.get(job.id)
    assert pruned.result is not None
    told = BuildResult.from_json(pruned.result)
    assert (told.stages, told.files) == (RESULT.stages, ())
    assert BuildSpec.from_json(pruned.payload).recipe_yaml == ""
    assert await world.builds.kept([job.id]) == set()


async def test_a_cancelled_build_is_told_with_the_heartbeat_and_a_drained_one_waits_again(world: World) -> None:
    first, process_id = await build(world), await builder(world)
    job = await take(world, process_id)
    assert job is not None
    assert await world.builds.release(job.id, job.fence, ())
    assert (await world.get(first.id)).state is JobState.QUEUED
    job = await take(world, process_id)
    assert job is not None
    await world.jobs.cancel(job.id, tenant="acme")
    assert (await world.processes.heartbeat(process_id, held=[Held(job.id, job.fence, 0)])).cancelled == {job.id}
    assert await world.builds.end(job.id, job.fence, cancelled=True)
    assert (await world.get(job.id)).state is JobState.CANCELLED
    waiting = await build(world)
    await world.jobs.cancel(waiting.id, tenant="acme")
    assert await take(world, process_id) is None
