"""Starts a supervisor, here or in the background, waits for one, and ends one. Draws nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from octavo.clock import Clock
from octavo_cli.datadir import DataDir
from octavo_cli.supervisor import logs, processes, state
from octavo_cli.supervisor.state import UpState
from octavo_common.errors import FailedPrecondition, OctavoError, Unavailable

_POLL_S = 0.2


class StartFailed(OctavoError):
    """The platform did not come up."""

    code = "START_FAILED"


def spawn_detached(data_dir: DataDir, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a supervisor that outlives this process; its words go to logs/up.log."""
    data_dir.make()
    log_file = data_dir.logs / "up.log"
    logs.rotate(log_file, max_bytes=1024 * 1024)
    data_dir.state_file.unlink(missing_ok=True)
    with log_file.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "octavo_cli", "--data-dir", str(data_dir.root), "up", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=Path.cwd(),
        )


def wait(
    data_dir: DataDir,
    *,
    timeout_s: float,
    clock: Clock,
    on_change: Callable[[UpState], None],
    child: subprocess.Popen[bytes] | None = None,
    until: Callable[[UpState], bool] = lambda up: up.phase == "ready",
) -> UpState:
    """Follow the supervisor's state until ``until`` holds; raises StartFailed when it fails or takes too long."""
    end_s = clock.monotonic() + timeout_s
    seen: UpState | None = None
    while True:
        up = state.read(data_dir.state_file)
        if up is not None and up != seen:
            seen = up
            on_change(up)
        if seen is not None:
            if seen.phase == "failed" and child is not None:
                # It is about to end; nobody should find it alive after the error was shown.
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=10)
            _check(seen)
            if until(seen):
                return seen
        if (child is not None and child.poll() is not None) or (child is None and not state.is_up(data_dir)):
            # It may have written its last words just before it ended.
            last = state.read(data_dir.state_file)
            if last is not None:
                _check(last)
            words = logs.last_words(data_dir.logs / "up.log")
            raise StartFailed(f"the supervisor has ended: {words}", hint=f"see {data_dir.logs / 'up.log'}")
        if clock.monotonic() > end_s:
            reasons = "; ".join(seen.not_ready or [seen.detail]) if seen else "the supervisor says nothing"
            raise StartFailed(
                f"the platform is not ready after {timeout_s:.0f} s: {reasons}",
                hint="it goes on starting; `octavo status` shows how far it is, `octavo down` ends it",
            )
        clock.wait(_POLL_S)


def _check(up: UpState) -> None:
    if up.phase == "failed":
        raise StartFailed(up.error, hint=up.hint)
    crashing = [service for service in up.services if service.state == "crashing"]
    if crashing:
        first = crashing[0]
        raise StartFailed(f"{first.name} {first.reason}", hint=f"see {first.log}; `octavo down` ends the rest")


def down(data_dir: DataDir, *, timeout_s: float, clock: Clock, say: Callable[[str], None]) -> bool:
    """End the platform and what it left behind; returns whether there was any. Raises Unavailable if it resists."""
    up = state.read(data_dir.state_file)
    found = False
    if state.is_up(data_dir):
        found = True
        _end_supervisor(data_dir, up, timeout_s=timeout_s, clock=clock, say=say)
    # After a supervisor that was killed: only processes that carry this directory's mark.
    found = processes.end_marked(data_dir.root, min(10.0, timeout_s), say) > 0 or found
    if (data_dir.root / "pg.json").exists():
        from octavo_common.db.embedded import EmbeddedPostgres

        embedded = EmbeddedPostgres(data_dir.root)
        if embedded.is_running:
            found = True
            say("stopping the database")
            embedded.stop()
    data_dir.state_file.unlink(missing_ok=True)
    return found


def _end_supervisor(
    data_dir: DataDir, up: UpState | None, *, timeout_s: float, clock: Clock, say: Callable[[str], None]
) -> None:
    if up is None or not processes.is_same(up.pid, up.started):
        raise FailedPrecondition(
            "a supervisor holds the data directory's lock and has not said who it is",
            hint=f"wait a moment and try again, or look who has {data_dir.lock_file} open",
        )
    say(f"stopping the platform (pid {up.pid})")
    end_s = clock.monotonic() + timeout_s
    with suppress(ProcessLookupError):
        os.kill(up.pid, signal.SIGTERM)
    # The lock is free a moment before the process is gone.
    while state.is_up(data_dir) or processes.is_same(up.pid, up.started):
        if clock.monotonic() > end_s:
            say("it does not end; killing it")
            if processes.is_same(up.pid, up.started):
                with suppress(psutil.Error):
                    psutil.Process(up.pid).kill()
            clock.wait(0.5)
            if state.is_up(data_dir):
                raise Unavailable("the supervisor does not end")
            return
        clock.wait(_POLL_S)
