"""Prints an answer as it comes: the text on stdout, whatever else there is to say on stderr."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.status import Status

import octavo
from octavo.clock import Clock
from octavo_cli.output import err, say

# A gateway that is started again is back before that; a pause that is longer wants an explanation.
_SILENCE_S = 3.0
_LOOK_S = 0.5


class Answer:
    """The printing of one stream. Mutable; one per stream."""

    def __init__(self, stream: octavo.TokenStream, *, quiet: bool, patience_s: float) -> None:
        """``quiet``: the text is not printed. ``patience_s``: how long the stream waits for a platform that is away."""
        self._stream = stream
        self._quiet = quiet
        self._patience_s = patience_s
        self._last = ""
        self._status: Status | None = None

    def print(self) -> octavo.GenerationResult:
        """Print the text as it comes, and a line end after it, whatever ends it; returns the result."""
        try:
            with self._waiting(), self._watched():
                for chunk in self._stream:
                    if chunk.text or not self._quiet:
                        self._stop_status()
                    if chunk.text and not self._quiet:
                        click.echo(chunk.text, nl=False)
                        self._last = chunk.text
        except BaseException:
            # What is said of it begins on a line of its own.
            if self._last and not self._last.endswith("\n"):
                click.echo()
            raise
        if self._stream.result is None:
            raise octavo.CancelledError("the job was cancelled", job_id=self._stream.job_id)
        if not self._quiet:
            click.echo()
        return self._stream.result

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A spinner on stderr until the first text."""
        if err.is_terminal:
            self._status = err.status("waiting for the first token")
            self._status.start()
        try:
            yield
        finally:
            self._stop_status()

    def _stop_status(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Say so once each time when the platform does not answer for a while: the stream itself only waits."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), name="contact", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        clock, told = Clock(), None
        while not ended.wait(_LOOK_S):
            since_s = self._stream.lost_since_s
            if since_s is not None and since_s != told and clock.monotonic() - since_s >= _SILENCE_S:
                told = since_s
                job = f" for job {self._stream.job_id}" if self._stream.job_id else ""
                if self._last and not self._last.endswith("\n") and sys.stdout.isatty():
                    err.print()
                    self._last = "\n"
                say(f"the platform does not answer; waiting up to {self._patience_s:.0f} s{job}")
