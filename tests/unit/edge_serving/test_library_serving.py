"""Finished builds on the disk, and what is told of one that runs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from octavo_common.clock import SystemClock
from octavo_common.errors import InvalidArgument, NotFound
from octavo_common.jobs.builds import BuildFile, BuildProgress, BuildSpec, BuildStage
from octavo_common.space import NoSpace
from octavo_edge.serving.library import CHUNK_BYTES, Library
from octavo_edge.serving.progress import BuildLog
from octavo_edge.stage import Progress

SPEC = BuildSpec(model="m", targets=("t",), recipe="", recipe_yaml="name: x", recipe_texts={"sub/a.txt": "text"})
JOB = uuid4()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "edge")


def built(library: Library, name: str = "files") -> Path:
    out = library.folders(JOB, 1, Path("/data")).out.with_name(name)
    (out / "blob").mkdir(parents=True)
    (out / "blob" / "a.onnx").write_bytes(os.urandom(CHUNK_BYTES * 2 + 5))
    (out / "empty.txt").write_bytes(b"")
    return out


def test_a_build_is_listed_with_its_digests_and_read_piece_by_piece_from_any_place(library: Library) -> None:
    assert library.open(JOB, 1, SPEC).read_text() == "name: x"
    assert (library.open(JOB, 1, SPEC).parent / "sub" / "a.txt").read_text() == "text"
    out = built(library)
    files = library.close(JOB, 1)
    data = (out / "blob" / "a.onnx").read_bytes()
    assert files == (
        BuildFile(name="blob/a.onnx", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()),
        BuildFile(name="empty.txt", size_bytes=0, sha256=hashlib.sha256(b"").hexdigest()),
    )
    again = Library(library.folders(JOB, 1, Path("/data")).store)
    assert (again.id, again.jobs(), tuple(again.files(JOB))) == (library.id, [JOB], files)
    pieces = list(again.chunks(JOB, files, 7))
    assert b"".join(piece for file, _, piece in pieces if file is files[0]) == data[7:]
    assert [offset for _, offset, _ in pieces] == [7, 7 + CHUNK_BYTES, 0]
    assert max(len(piece) for _, _, piece in pieces) <= CHUNK_BYTES
    with pytest.raises(InvalidArgument):
        list(again.chunks(JOB, files, len(data) + 1))
    with pytest.raises(NotFound, match=r"no file 'x'"):
        again.files(JOB, ["x"])
    again.drop(JOB)
    with pytest.raises(NotFound):
        again.files(JOB)


def test_of_a_failed_build_its_report_is_left_and_nothing_of_an_earlier_attempt(library: Library) -> None:
    library.open(JOB, 1, SPEC)
    built(library)
    library.open(JOB, 1, SPEC)
    assert library.close(JOB, 1) == ()
    built(library, "files-failed")
    assert [file.name for file in library.close(JOB, 1)] == ["blob/a.onnx", "empty.txt"]


def test_an_attempt_that_has_lost_its_lease_leaves_the_next_one_alone(library: Library) -> None:
    library.open(JOB, 1, SPEC)
    built(library)
    later = library.open(JOB, 2, SPEC)
    assert library.close(JOB, 1) != ()
    library.drop_attempt(JOB, 1)
    assert later.read_text() == "name: x"
    out = library.folders(JOB, 2, Path("/data")).out
    out.mkdir()
    (out / "of the second").write_bytes(b"")
    # The first comes back once more: what was delivered is the newest attempt's, and ends the others.
    library.open(JOB, 1, SPEC)
    built(library)
    library.close(JOB, 1)
    files = library.close(JOB, 2)
    assert [file.name for file in files] == ["of the second"]
    assert tuple(library.files(JOB)) == files
    library.keep_only(JOB, 2)
    assert tuple(library.files(JOB)) == files
    assert not library.folders(JOB, 1, Path("/data")).out.exists()


def test_a_file_that_has_changed_is_found_by_its_digest(library: Library) -> None:
    library.open(JOB, 1, SPEC)
    out = built(library)
    (file, *_) = library.close(JOB, 1)
    (out / "blob" / "a.onnx").write_bytes(b"x" * file.size_bytes)
    read = b"".join(piece for _, _, piece in library.chunks(JOB, [file], 0))
    assert hashlib.sha256(read).hexdigest() != file.sha256


@pytest.fixture
def small(small_disk: Callable[[str], Path]) -> Path:
    """A folder on a disk of 1 MB."""
    return small_disk("1m")


def test_a_full_disk_is_named(small: Path) -> None:
    library = Library(small / "edge")
    with pytest.raises(NoSpace, match=f"no space left on the device of {small}"):
        library.open(JOB, 1, BuildSpec(model="m", targets=("t",), recipe_texts={"a": "x" * (2 << 20)}))


def test_a_disk_that_is_full_when_a_build_is_listed_leaves_no_list(small: Path) -> None:
    library = Library(small / "edge")
    library.open(JOB, 1, SPEC)
    out = library.folders(JOB, 1, Path("/data")).out
    out.mkdir()
    for number in range(50):
        (out / f"{number}-{'x' * 100}.onnx").write_bytes(b"")
    with (small / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(b"x" * 4096):
            pass
    with pytest.raises(NoSpace, match="no space left on the device"):
        library.close(JOB, 1)
    with pytest.raises(NotFound):
        library.files(JOB)
    (small / "filler").unlink()
    assert len(library.close(JOB, 1)) == len(library.files(JOB)) == 50
    assert not list(out.parent.glob(".*"))


def stage(name: str) -> BuildStage:
    return BuildStage(stage=name, cached=False, seconds=1, size_bytes=1, peak_memory_bytes=1)


async def test_every_follower_is_told_all_stages_and_a_slow_one_the_newest_progress_only() -> None:
    log = BuildLog(JOB, 1, SystemClock())
    log.stage(stage("adapt"))
    told: list[BuildProgress | BuildStage] = []

    async def follow() -> None:
        async for event in log.follow():
            told.append(event)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    for step in range(50):
        log.step(Progress(stage="optimise", done=step, total=50))
    await asyncio.sleep(0.01)
    log.stage(stage("optimise"))
    log.step(Progress(stage="quantise", done=0, total=1))
    log.end()
    await following
    assert [event.stage for event in told if isinstance(event, BuildStage)] == ["adapt", "optimise"]
    steps = [event for event in told if isinstance(event, BuildProgress)]
    assert [(one.done, one.num_stages_done) for one in steps] == [(49, 1)]
    late = [event async for event in log.follow()]
    assert [event.stage for event in late if isinstance(event, BuildStage)] == ["adapt", "optimise"]


async def test_nobody_is_told_of_a_stages_steps_after_its_end() -> None:
    log = BuildLog(JOB, 1, SystemClock())
    log.step(Progress(stage="adapt", done=4, total=4))
    log.stage(stage("adapt"))
    following = log.follow()
    assert await anext(following) == stage("adapt")
    later = asyncio.ensure_future(anext(following))
    for _ in range(10):  # what is told already comes in one turn of the loop
        await asyncio.sleep(0)
    assert not later.done()
    log.step(Progress(stage="optimise", done=0, total=9))
    step = await later
    assert isinstance(step, BuildProgress) and (step.stage, step.done) == ("optimise", 0)


def test_json_of_the_list_is_whole_or_not_there(library: Library, tmp_path: Path) -> None:
    library.open(JOB, 1, SPEC)
    built(library)
    library.close(JOB, 1)
    listed = json.loads((tmp_path / "edge" / "builds" / str(JOB) / "1" / "files.json").read_text())
    assert [entry["name"] for entry in listed] == ["blob/a.onnx", "empty.txt"]
    assert not list((tmp_path / "edge" / "builds" / str(JOB) / "1").glob(".*"))
