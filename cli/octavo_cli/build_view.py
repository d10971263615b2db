"""What is shown of a build while it runs: a bar for its stage on a terminal, else a line now and then. Asks nothing."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

import octavo
from octavo.clock import Clock
from octavo_cli.output import err, say

_EVERY_S = 5.0


class BuildView:
    """Shows the events of a watch. Mutable; a context manager."""

    def __init__(self, clock: Clock) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task: TaskID | None = None
        self._clock, self._title, self._said_s = clock, "", 0.0

    def show(self, event: octavo.BuildEvent) -> None:
        """Show what has happened."""
        if isinstance(event, octavo.BuildStage):
            self._end_stage(event)
        elif isinstance(event, octavo.BuildProgress):
            self._step(event)
        elif not event.state.ended:
            again = f" again, after the loss of {event.job.num_losses} builders" if event.job.num_losses else ""
            say(f"build {event.id} is {event.state}{again}")

    def _end_stage(self, stage: octavo.BuildStage) -> None:
        self._stop_bar()
        how = "as before" if stage.cached else f"{stage.duration_s:.1f} s"
        say(f"{stage.title}: {stage.size_bytes / 1e6:.1f} MB, {how}")
        for warning in stage.warnings:
            say(f"{stage.title}: warning: {warning}")

    def _step(self, progress: octavo.BuildProgress) -> None:
        text = f"{progress.title} {progress.done}/{progress.total} {progress.what}".rstrip()
        if err.is_terminal:
            if progress.title != self._title or self._task is None:
                self._stop_bar()
                self._task = self._progress.add_task(text, total=progress.total or None)
            self._progress.update(
                self._task, description=text[:80], completed=progress.done, total=progress.total or None
            )
        elif progress.title != self._title or self._clock.monotonic() - self._said_s >= _EVERY_S:
            self._said_s = self._clock.monotonic()
            say(text)
        self._title = progress.title

    def _stop_bar(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()


class DownloadView:
    """A bar for a download. Mutable; a context manager."""

    def __init__(self) -> None:
        columns = (TextColumn("downloading"), BarColumn(bar_width=24), DownloadColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._progress.add_task("", total=None)

    def show(self, done: int, total: int) -> None:
        """Show how many bytes are here."""
        self._progress.update(self._task, completed=done, total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()
