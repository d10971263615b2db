"""How a build at the command line tells of itself: in words on stderr, or as events on stdout for programs."""

from __future__ import annotations

import os
import sys
from typing import Protocol, TextIO

from octavo_common.clock import Clock
from octavo_edge.events import Built, Event, failure_event, stage_event, to_line
from octavo_edge.pipeline import GateFailed, StageRun
from octavo_edge.stage import Progress

_WORDS_EVERY_S, _EVENTS_EVERY_S = 2.0, 0.2


class Narrator(Protocol):
    """Is told all that happens to a build."""

    def progress(self, progress: Progress) -> None:
        """A stage made a step."""
        ...

    def stage(self, run: StageRun) -> None:
        """A stage ended."""
        ...

    def built(self, outcome: str, failed_targets: tuple[str, ...]) -> None:
        """The whole was delivered."""
        ...

    def failed(self, error: Exception) -> None:
        """It was not."""
        ...


class Words:
    """Tells of progress on stderr: a stage's begin and end always, its steps every two seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._told_s, self._title = clock, 0.0, ""

    def progress(self, progress: Progress) -> None:
        """Tell of a step, if the last line is old enough or of another stage."""
        now_s = self._clock.monotonic()
        if progress.title != self._title or now_s - self._told_s >= _WORDS_EVERY_S:
            self._told_s, self._title = now_s, progress.title
            what = f" {progress.what}" if progress.what else ""
            say(f"{progress.title}: {progress.done}/{progress.total}{what}")

    def stage(self, run: StageRun) -> None:
        """Tell that a stage ended."""
        report = run.report
        how = "as before" if run.cached else f"{report.seconds:.1f} s, {report.peak_rss_bytes / 1e6:.0f} MB of memory"
        say(f"{run.title}: done, {report.size_bytes / 1e6:.1f} MB ({how})")
        for warning in report.outcome.warnings:
            say(f"{run.title}: warning: {warning}")

    def built(self, outcome: str, failed_targets: tuple[str, ...]) -> None:
        """The command says it, with the place."""

    def failed(self, error: Exception) -> None:
        """The command says it; here only where the result lies that a gate refuses."""
        if isinstance(error, GateFailed):
            say(f"{error.run.title}: its result is in {error.run.artifact.path}")


class Events:
    """Writes events to a stream, steps of a stage at most five times a second."""

    def __init__(self, clock: Clock, stream: TextIO) -> None:
        self._clock, self._stream, self._told_s, self._title = clock, stream, 0.0, ""

    def progress(self, progress: Progress) -> None:
        """Tell of a step, if the last one told is old enough or of another stage."""
        now_s = self._clock.monotonic()
        if progress.title != self._title or now_s - self._told_s >= _EVENTS_EVERY_S:
            self._told_s, self._title = now_s, progress.title
            self._write(progress)

    def stage(self, run: StageRun) -> None:
        """Tell that a stage ended, with what it has measured."""
        self._write(stage_event(run))

    def built(self, outcome: str, failed_targets: tuple[str, ...]) -> None:
        """Tell that all was delivered."""
        self._write(Built(outcome=outcome, failed_targets=failed_targets))

    def failed(self, error: Exception) -> None:
        """Tell why not."""
        self._write(failure_event(error))

    def _write(self, event: Event) -> None:
        self._stream.write(f"{to_line(event)}\n")
        self._stream.flush()


def own_stdout() -> TextIO:
    """What was the process's stdout, for events alone: what libraries print there goes to stderr from now on."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def say(line: str) -> None:
    """A line for people."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
