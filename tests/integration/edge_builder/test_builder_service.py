"""Builds through the platform: submitted, followed, downloaded; killed, cancelled, drained, and gone on with."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import psutil
import pytest
from builder_world import QUICK, BuilderWorld, in_stage, stages

import octavo
from octavo import JobState

pytestmark = pytest.mark.db

ALL = ["adapt", "optimise", "quantise", "export", "compile"]


def tree(folder: Path) -> dict[str, str]:
    """sha256 by name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_a_build_is_followed_by_stage_and_downloaded_whole_also_from_a_builder_that_was_restarted(
    world: BuilderWorld,
) -> None:
    builder = await world.builder()
    build = await world.submit(idempotency_key="once")
    assert (build.state, build.targets, build.recipe_yaml) == (JobState.QUEUED, ("onnxruntime",), QUICK)
    assert (await world.submit(idempotency_key="once")).id == build.id
    events = await world.follow(build)
    assert [stage for stage, _ in stages(events)][:5] == ALL
    # What is made for one target says for which.
    done = [event for event in events if isinstance(event, octavo.BuildStage)]
    assert [stage.title for stage in done] == [*ALL[:4], "compile for onnxruntime", "deploy for onnxruntime"]
    told = {event.title for event in events if isinstance(event, octavo.BuildProgress)}
    assert "compile for onnxruntime" in told
    assert told >= {stage.title for stage in done if not stage.cached and stage.stage in ALL}
    states = [event.state for event in events if isinstance(event, octavo.Build)]
    assert states[-2:] == [JobState.RUNNING, JobState.SUCCEEDED]
    ended = events[-1]
    assert isinstance(ended, octavo.Build)
    assert ended.result is not None
    assert (ended.result.outcome, ended.progress) == ("compiled+run", None)
    quantise = next(stage for stage in ended.result.stages if stage.stage == "quantise")
    assert quantise.metrics["mean_kl_nats"] >= 0
    assert [stage.target for stage in ended.result.stages] == [""] * 4 + ["onnxruntime"] * 2
    assert await world.builds.get(build.id) == ended

    # As a job it is one of many, and no generation.
    job = await world.client.jobs.get(build.id)
    assert (job.kind, job.state, job.result) == ("edge_build", JobState.SUCCEEDED, None)
    (listed,) = await world.builds.list()
    assert (listed.id, listed.targets, listed.result) == (build.id, ("onnxruntime",), None)

    assert await builder.stop() == 0
    with pytest.raises(octavo.UnavailableError) as away:
        async with octavo.AsyncClient(
            f"127.0.0.1:{world.port}", api_key=world.gateways.key, retry=octavo.RetryPolicy(max_attempts=1)
        ) as hasty:
            await hasty.builds.download(build.id, world.folder / "early")
    assert away.value.code == "BUILDER_AWAY"
    assert list(world.folder.glob("*early*")) == []

    await world.builder()
    seen: list[int] = []
    files = await world.builds.download(build.id, world.folder / "out", on_bytes=lambda done, total: seen.append(done))
    assert tree(world.folder / "out") == {file.name: file.sha256 for file in files}
    assert {file.name for file in files} == {file.name for file in ended.result.files}
    assert seen[-1] == sum(file.size_bytes for file in files)
    report = json.loads((world.folder / "out" / "report.json").read_text())
    assert report["outcome"] == "compiled+run"
    for path in (world.folder / "out").rglob("*.onnx"):
        onnx.checker.check_model(str(path))
    (one,) = await world.builds.download(build.id, world.folder / "one", names=["report.html"])
    assert tree(world.folder / "one") == {"report.html": one.sha256}


async def test_a_build_whose_builder_is_killed_goes_on_at_its_stage_and_leaves_no_process(world: BuilderWorld) -> None:
    first = await world.builder()
    # Enough windows to be met in the stage.
    build = await world.submit("calibration: {num_windows: 48}\nevaluation: {num_windows: 1}\n")
    await world.follow(build, in_stage("quantise"))
    children = first.children()
    assert children
    await first.kill()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 10)
    assert alive == []
    await world.reaped(build)
    await world.builder()
    events = await world.follow(build)
    ended = events[-1]
    assert isinstance(ended, octavo.Build)
    assert ended.state is JobState.SUCCEEDED
    assert stages(events)[:3] == [("adapt", True), ("optimise", True), ("quantise", False)]
    names = [event.event for event in await world.client.jobs.events(build.id)]
    assert names == ["queued", "running", "reaped", "running", "succeeded"]
    assert ended.job.num_losses == 1


async def test_a_build_is_cancelled_in_its_stage_another_drained_and_the_next_builder_goes_on(
    world: BuilderWorld,
) -> None:
    builder = await world.builder()
    long = "calibration: {num_windows: 50}\nevaluation: {num_windows: 1}\nprecision: {kv_cache: int16}\n"
    build = await world.submit(long)
    waiting = await world.submit(long + "gates: {max_ppl_ratio: 9}\n")
    assert (await world.builds.cancel((await world.submit(long)).id)).state is JobState.CANCELLED
    await world.follow(build, in_stage("quantise"))
    assert (await world.builds.get(waiting.id)).state is JobState.QUEUED
    assert (await world.builds.cancel(build.id)).job.cancel_requested
    cancelled = await world.end(build)
    assert (cancelled.state, cancelled.job.failure and cancelled.job.failure.code) == (JobState.CANCELLED, "CANCELLED")
    with pytest.raises(octavo.NotFoundError):
        await world.builds.download(build.id, world.folder / "out")

    await world.follow(waiting, in_stage("quantise"))
    children = builder.children()
    assert await builder.stop() == 0
    assert not any(child.is_running() for child in children)
    given_back = await world.builds.get(waiting.id)
    assert (given_back.state, given_back.job.num_losses) == (JobState.QUEUED, 0)
    await world.builder()
    assert (await world.end(waiting)).state is JobState.SUCCEEDED


async def test_a_failed_gate_names_the_tensors_and_its_report_can_be_downloaded(world: BuilderWorld) -> None:
    await world.builder()
    recipe = QUICK.replace("num_windows: 2", "num_windows: 2, texts: [mine/words.txt]") + "gates: {min_sqnr_db: 1000}\n"
    texts = {"mine/words.txt": "A river runs past the mill, and the miller counts sacks of rye. " * 60}
    build = await world.end(await world.submit(recipe, recipe_texts=texts))
    assert build.state is JobState.FAILED
    assert build.job.failure is not None
    assert build.job.failure.code == "GATE_FAILED"
    assert "lost most: " in build.job.failure.message
    assert build.result is not None
    (gate,) = [gate for stage in build.result.stages for gate in stage.gates if not gate.passes]
    assert gate.limit == "sqnr_db >= 1000"
    await world.builds.download(build.id, world.folder / "failed")
    report = json.loads((world.folder / "failed" / "report.json").read_text())
    assert report["outcome"].startswith("failed: quantise: ")
    # Of the builder's host nothing is told.
    assert report["settings"]["recipe"]["calibration"]["texts"] == ["words.txt"]
    assert str(world.place.data_dir.parent) not in build.job.failure.hint
    assert str(world.place.data_dir.parent) not in (world.folder / "failed" / "report.json").read_text()
    assert {path.name for path in (world.folder / "failed").iterdir()} == {"report.json", "report.html"}


async def test_what_only_the_model_shows_fails_the_build_before_its_first_stage(world: BuilderWorld) -> None:
    await world.builder()
    short = await world.submit(context_length=128)
    other = world.place.other_model(world.folder / "other", model_type="mamba", architectures=["MambaForCausalLM"])
    foreign = await world.submit(model=other)
    corrupt = world.place.other_model(world.folder / "corrupt")
    (corrupt / "model.safetensors").write_bytes((corrupt / "model.safetensors").read_bytes()[:1000])
    broken = await world.submit(model=corrupt)
    late = await world.submit(timeout_s=0.5)
    for build, code, said in (
        (short, "INVALID_ARGUMENT", "longer than the model's, which is 64"),
        (foreign, "UNSUPPORTED_MODEL", "MambaForCausalLM"),
        (broken, "CORRUPT_CHECKPOINT", "corrupt"),
    ):
        ended = await world.end(build)
        assert ended.state is JobState.FAILED
        assert ended.job.failure is not None
        assert (ended.job.failure.code, said in ended.job.failure.message) == (code, True)
        assert ended.result is not None
        assert ended.result.stages == ()
    # The scheduler's part.
    await world.placement.expire_deadlines()
    ended = await world.end(late)
    assert ended.job.failure is not None
    assert ended.job.failure.code == "DEADLINE_EXCEEDED"


# What a build does first in its last two stages, and when it delivers: then the disk is filled, but for a beginning.
FILLS = """
import os, sys
if "build" in sys.orig_argv:
    place, data_dir = open({where!r}).read(), {data_dir!r}

    def fill(event, arguments):
        global place
        if event == "os.mkdir" and place and str(arguments[0]).endswith(place):
            place = ""
            with open(os.path.join(data_dir, "filler"), "wb", buffering=0) as filler:
                free = os.statvfs(data_dir)
                left = free.f_bavail * free.f_frsize - 24576
                while left > 0:
                    left -= filler.write(b"x" * min(left, 1 << 20))

    sys.addaudithook(fill)
"""


async def test_a_full_disk_in_the_last_stages_fails_the_build_by_its_name_and_the_next_one_goes_on(
    world: BuilderWorld, small_disk: Callable[[str], Path]
) -> None:
    # As much as the estimate wants; what is not written takes no memory.
    disk, where = small_disk("400m"), world.folder / "where"
    (world.folder / "sitecustomize.py").write_text(FILLS.format(where=str(where), data_dir=str(disk)))
    builder = await world.builder(data_dir=disk, PYTHONPATH=str(world.folder))
    titles = [*ALL[:4], "compile for onnxruntime", "deploy for onnxruntime"]
    for place, num_done in (("/entry/files/blob", 4), ("/entry/files/encodings", 5), (".partial", 6)):
        where.write_text(place)
        build = await world.end(await world.submit())
        assert build.job.failure is not None
        assert (build.state, build.job.failure.code) == (JobState.FAILED, "NO_SPACE")
        assert "no space left on the device of ..." in build.job.failure.message
        assert build.result is not None
        assert [stage.title for stage in build.result.stages] == titles[:num_done]
        # The job table says the same to whoever asks it, and hands out a report at most: a draft leaves room.
        assert (await world.client.jobs.get(build.id)).failure == build.job.failure
        assert {file.name for file in build.result.files} <= {"report.json", "report.html"}
        assert build.result.outcome == f"failed: {build.job.failure.message}"
        assert len(list((disk / "edge" / "objects").iterdir())) == num_done
        assert list((disk / "edge" / "drafts").iterdir()) == []
        (disk / "filler").unlink()
    assert builder.log.count("build.failed") == 3
    where.write_text("")
    events = await world.follow(await world.submit())
    ended = events[-1]
    assert isinstance(ended, octavo.Build)
    assert (ended.state, [cached for _, cached in stages(events)]) == (JobState.SUCCEEDED, [True] * 6)
    await world.builds.download(ended.id, world.folder / "out")
    bundles = [path.parent for path in (disk / "edge" / "builds").rglob("metadata.json")]
    assert bundles == [disk / "edge" / "builds" / ended.id / "1" / "files"]
    assert not [path.name for path in (disk / "edge" / "builds").rglob("*") if "partial" in path.name]


@pytest.fixture
def small(small_disk: Callable[[str], Path]) -> Path:
    """A folder on a disk of 1 MB."""
    return small_disk("1m")


async def test_a_full_disk_fails_the_build_by_its_name_and_leaves_nothing_under_its_final_one(
    world: BuilderWorld, small: Path
) -> None:
    builder = await world.builder(data_dir=small)
    (small / "filler").write_bytes(b"x" * 900_000)
    build = await world.end(await world.submit())
    assert build.state is JobState.FAILED
    assert build.job.failure is not None
    assert build.job.failure.code == "NO_SPACE"
    # Who asked for it is told what is full, and the log where that is.
    assert "of the disk of .../edge, which has 0.000 GB free" in build.job.failure.message
    assert build.result is not None and str(small) not in build.result.outcome
    assert f"of the disk of {small}/edge" in builder.log
    assert not list((small / "edge" / "builds").glob("*/*/files"))
    assert not list((small / "edge" / "objects").iterdir())
