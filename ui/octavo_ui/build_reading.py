"""Reads builds through the SDK: how far one is, its report, its files. Draws nothing."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import Build, BuildFile, BuildProgress, BuildStage, Client, DeadlineExceededError, JobState, OctavoError
from octavo_ui.build_report import REPORT, NotAReport, Report, from_build, from_document

# What a build's builder knows of it comes at once; before its first step there is nothing to wait for.
GLANCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """A build as it is now: the stages that have ended in its present attempt, and how far the running one is."""

    build: Build
    stages: tuple[BuildStage, ...] = ()
    progress: BuildProgress | None = None


def glance(client: Client, build_id: str, *, timeout_s: float = GLANCE_S) -> Glance:
    """Watch a build until its builder has told all that it knows now."""
    build: Build | None = None
    stages: list[BuildStage] = []
    try:
        with closing(client.builds.watch(build_id, timeout_s=timeout_s)) as events:
            for event in events:
                if isinstance(event, Build):
                    if build is None or event.job.fence != build.job.fence:
                        stages = []
                    build = event
                    if build.state is not JobState.RUNNING:
                        break
                elif isinstance(event, BuildStage):
                    stages.append(event)
                else:
                    return Glance(build=build or client.builds.get(build_id), stages=tuple(stages), progress=event)
    except DeadlineExceededError:
        if build is None:
            raise
    return Glance(build=build or client.builds.get(build_id), stages=tuple(stages))


def file_of(build: Build, name: str) -> BuildFile | None:
    """A file of an ended build that can be downloaded, or None."""
    files = build.result.files if build.result is not None else ()
    return next((file for file in files if file.name == name), None)


def document(client: Client, build_id: str) -> dict[str, Any]:
    """The report of a build that has one, as its builder wrote it."""
    return json.loads(fetched(client, build_id, [REPORT]))


def report(build: Build, read: Any) -> tuple[Report, str]:
    """The build's report and, if its document (which ``read`` reads) cannot be had, why: then it knows less."""
    if file_of(build, REPORT) is None:
        return from_build(build), ""
    try:
        return from_document(read()), ""
    except OctavoError as error:
        return from_build(build), error.message
    except NotAReport as error:
        return from_build(build), f"{REPORT} is none that this console can read ({error})"


def fetched(client: Client, build_id: str, names: Sequence[str]) -> bytes:
    """One file of a build, or several as a zip. The SDK holds each against its sha256, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="octavo-console-") as folder:
        out = Path(folder) / "files"
        files = client.builds.download(build_id, out, names=names)
        if len(names) == 1:
            return (out / files[0].name).read_bytes()
        packed = io.BytesIO()
        # Weights do not get smaller.
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for file in files:
                archive.write(out / file.name, file.name)
        return packed.getvalue()
