"""How `octavo build` ends: what a failed build left is told and fetched, and Ctrl-C says what became of the build."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.build_values import FileChunk
from octavo.downloads import Download
from octavo_cli.commands.build import accepted, deliver, interrupted
from octavo_cli.context import Context
from octavo_edge.report import FORMAT


class Platform:
    """One build whose files come as a server sends them; all that a command asks of a client's ``builds``."""

    def __init__(self, state: octavo.JobState, text: str) -> None:
        self.content = {"report.json": json.dumps({"format": FORMAT, "text": text}).encode(), "report.html": b"x"}
        failure = octavo.Failure(code="TARGET_FAILED", message="it went wrong", hint="do better")
        job = octavo.Job(
            id="b", kind="edge_build", tenant="t", model="m", model_digest="", state=state, priority=0, fence=1,
            worker_id="", num_losses=0, cancel_requested=False, created_at=None, started_at=None, ended_at=None,
            deadline=None, num_prompt_tokens=0, result=None, trace_id="", numerics_id="",
            failure=failure if state is octavo.JobState.FAILED else None,
        )  # fmt: skip
        files = tuple(
            octavo.BuildFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in self.content.items()
        )
        self.build = octavo.Build(
            job=job, model="m", targets=("t",), recipe="w8a16", recipe_yaml="", context_length=8, ars=(2, 1),
            options={}, target_options={}, progress=None,
            result=octavo.BuildResult(outcome="as told", duration_s=1.0, files=files),
        )  # fmt: skip

    @property
    def builds(self) -> Platform:
        return self

    def download(self, build_id: str, out: Path, *, names: Any = (), on_bytes: Any = None) -> list[octavo.BuildFile]:
        assert build_id == self.build.id
        with Download(self.build, out, names, on_bytes) as download:
            for file in download.files:
                download.take(FileChunk(file=file, offset=0, data=self.content[file.name]))
            return download.finish()

    def cancel(self, build_id: str) -> octavo.Build:
        """As the platform does it: what has ended stays as it is."""
        assert build_id == self.build.id
        if self.build.state.ended:
            return self.build
        return replace(self.build, job=replace(self.build.job, state=octavo.JobState.CANCELLED))


def end(platform: Any, out: Path) -> int:
    return deliver(platform, platform.build, out, as_json=False)


def test_a_second_failure_is_told_and_its_report_replaces_the_first(tmp_path: Path, capfd: Any) -> None:
    for text in ("first", "second"):
        assert end(Platform(octavo.JobState.FAILED, text), tmp_path / "out") == 1
        told = capfd.readouterr().err
        assert told.index("it went wrong [TARGET_FAILED] - do better") < told.index(f"report is in {tmp_path}")
        assert json.loads((tmp_path / "out-failed" / "report.json").read_text())["text"] == text
    assert [path.name for path in tmp_path.iterdir()] == ["out-failed"]


def test_what_is_no_report_stays_and_the_failure_is_told_all_the_same(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "out-failed").mkdir()
    (tmp_path / "out-failed" / "mine.txt").write_text("mine")
    assert end(Platform(octavo.JobState.FAILED, "x"), tmp_path / "out") == 1
    told = capfd.readouterr().err
    assert told.index("it went wrong") < told.index("its report was not fetched")
    assert [path.name for path in tmp_path.rglob("*")] == ["out-failed", "mine.txt"]


def test_a_good_build_is_where_it_was_asked_for(tmp_path: Path, capfd: Any) -> None:
    assert end(Platform(octavo.JobState.SUCCEEDED, "x"), tmp_path / "out") == 0
    assert "as told in 1.0 s" in capfd.readouterr().err
    with pytest.raises(octavo.InvalidArgumentError, match="no empty directory"):
        end(Platform(octavo.JobState.SUCCEEDED, "x"), tmp_path / "out")


@pytest.mark.parametrize(
    ("state", "said", "hint"),
    [
        ("running", "build b is cancelled", "the same command goes on"),
        ("succeeded", "build b had succeeded before", "builds download b --out DIR` fetches"),
        ("failed", "build b had failed before", "builds download b --out DIR` fetches"),
    ],
)
def test_ctrl_c_says_what_became_of_the_build(state: str, said: str, hint: str, tmp_path: Path, capfd: Any) -> None:
    context = Context.make(data_dir=tmp_path, address="", key="")
    platform: Any = Platform(octavo.JobState(state), "x")
    assert interrupted(context, platform, "b") == 130
    told = capfd.readouterr().err
    assert told.startswith(f"error: interrupted; {said} - ")
    assert hint in told


def test_a_detached_build_says_that_its_place_is_not_used(tmp_path: Path, capfd: Any) -> None:
    context = Context.make(data_dir=tmp_path, address="", key="")
    build = Platform(octavo.JobState.QUEUED, "x").build
    assert accepted(context, build, tmp_path / "out", as_json=False) == 0
    told = capfd.readouterr()
    assert told.out == "b\n"
    assert told.err.startswith("--out is not used with --detach")
    assert f"builds download b --out {tmp_path / 'out'}" in told.err
    assert accepted(context, build, None, as_json=False) == 0
    assert capfd.readouterr() == ("b\n", "")
