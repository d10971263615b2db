"""Downloads of builds: whole or not at all, whatever the wire and the server do; and watches that begin again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import octavo
from octavo.build_values import FileChunk
from octavo.downloads import Download, NewEvents, check_place

CONTENT = {"report.json": b"{}", "blob/a.bin": b"0123456789", "empty": b""}


def file_of(name: str, data: bytes) -> octavo.BuildFile:
    return octavo.BuildFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


FILES = tuple(file_of(name, data) for name, data in CONTENT.items())


def build_of(
    *files: octavo.BuildFile, state: octavo.JobState = octavo.JobState.SUCCEEDED, fence: int = 1
) -> octavo.Build:
    job = octavo.Job(
        id="b", kind="edge_build", tenant="t", model="m", model_digest="", state=state, priority=0, fence=fence,
        worker_id="", num_losses=0, cancel_requested=False, created_at=None, started_at=None, ended_at=None,
        deadline=None, num_prompt_tokens=0, result=None, failure=None, trace_id="", numerics_id="",
    )  # fmt: skip
    return octavo.Build(
        job=job, model="m", targets=("t",), recipe="w8a16", recipe_yaml="", context_length=8, ars=(2, 1), options={},
        target_options={}, progress=None, result=octavo.BuildResult(outcome="ok", duration_s=1.0, files=files),
    )  # fmt: skip


def pieces(names: list[str], first_offset: int, size: int = 4) -> list[FileChunk]:
    """What a server sends."""
    found = []
    for name in names:
        data, offset, first_offset = CONTENT[name], first_offset, 0
        starts = range(offset, max(len(data), offset + 1), size)
        found += [FileChunk(file=file_of(name, data), offset=at, data=data[at : at + size]) for at in starts]
    return found


@pytest.mark.parametrize("broken_after", range(6))
def test_a_download_goes_on_where_its_connection_broke_and_appears_whole(tmp_path: Path, broken_after: int) -> None:
    seen: list[tuple[int, int]] = []
    with Download(build_of(*FILES), tmp_path / "out", (), lambda *at: seen.append(at)) as download:
        for chunk in pieces([file.name for file in FILES], 0)[:broken_after]:
            download.take(chunk)
        assert not (tmp_path / "out").exists()
        left = download.left()
        for chunk in pieces(*left) if left else ():
            download.take(chunk)
        assert download.left() is None
        assert download.finish() == list(FILES)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in CONTENT} == CONTENT
    assert seen[-1] == (12, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_download_has_its_name_after_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int | str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(file: int) -> None:
        fsync(file)
        order.append(os.fstat(file).st_ino)

    def noted_rename(path: Path, target: Path) -> Path:
        order.append("named")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    with Download(build_of(*FILES), tmp_path / "out", (), None) as download:
        for chunk in pieces([file.name for file in FILES], 0):
            download.take(chunk)
        download.finish()
    made = {path.stat().st_ino for path in (tmp_path / "out", *(tmp_path / "out").rglob("*"))}
    assert made <= set(order[: order.index("named")])
    assert order[order.index("named") + 1 :] == [tmp_path.stat().st_ino]


def test_a_download_onto_a_full_disk_leaves_nothing(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("64k")
    content = b"x" * 200_000
    file = file_of("large.bin", content)
    with (
        pytest.raises(OSError, match="No space left on device"),
        Download(build_of(file), disk / "out", (), None) as download,
    ):
        download.take(FileChunk(file=file, offset=0, data=content))
    assert list(disk.iterdir()) == []


def test_other_bytes_than_listed_leave_nothing(tmp_path: Path) -> None:
    wrong = replace(FILES[0], sha256="0" * 64)
    with (
        pytest.raises(octavo.AbortedError, match=r"report\.json has other bytes"),
        Download(build_of(wrong), tmp_path / "out", (), None) as download,
    ):
        download.take(pieces(["report.json"], 0)[0])
    assert list(tmp_path.iterdir()) == []


def test_pieces_out_of_order_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(octavo.AbortedError, match="out of order"),
        Download(build_of(*FILES), tmp_path / "out", ["blob/a.bin"], None) as download,
    ):
        download.take(pieces(["blob/a.bin"], 4)[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "/abs", "a/../../b", "a\\b"])
def test_no_server_makes_a_client_write_outside_of_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(octavo.AbortedError, match="no name of a file"):
        Download(build_of(file_of(name, b"x")), tmp_path / "out", (), None)


def test_a_place_that_holds_something_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert check_place(tmp_path / "out") == tmp_path / "out"
    (tmp_path / "out" / "thesis.txt").write_text("words")
    with pytest.raises(octavo.InvalidArgumentError, match="no empty directory"):
        check_place(tmp_path / "out")
    with pytest.raises(octavo.NotFoundError, match="no file 'x'"):
        Download(build_of(*FILES), tmp_path / "new", ["x"], None)
    with pytest.raises(octavo.NotFoundError, match="has not ended"):
        Download(replace(build_of(state=octavo.JobState.RUNNING), result=None), tmp_path / "new", (), None)


def test_a_watch_that_begins_again_tells_nothing_twice_and_another_attempt_everything() -> None:
    new = NewEvents()
    running = build_of(state=octavo.JobState.RUNNING)
    adapt, optimise = (
        octavo.BuildStage(stage=name, cached=False, duration_s=1, size_bytes=1, peak_memory_bytes=1)
        for name in ("adapt", "optimise")
    )
    new.begin()
    assert [new.is_new(event) for event in (running, adapt)] == [True, True]
    new.begin()
    assert [new.is_new(event) for event in (running, adapt, optimise)] == [False, False, True]
    assert new.is_new(octavo.BuildProgress(stage="quantise", done=1, total=2))
    again = build_of(state=octavo.JobState.RUNNING, fence=3)
    assert [new.is_new(event) for event in (again, adapt, optimise)] == [True, True, True]
