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
from octavo_cli import invocation
from octavo_cli.datadir import DataDir
from octavo_cli.supervisor import logs, processes, state
from octavo_cli.supervisor.state import UpState
from octavo_common.errors import FailedPrecondition, OctavoError, Unavailable

_POLL_S = 0.2
_REMIND_S = 30.0


class StartFailed(OctavoError):
    """The platform did not come up."""

    code = "START_FAILED"


def spawn_detached(data_dir: DataDir, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a supervisor that outlives this process; its words go to logs/up.log."""
    data_dir.make()
    log_file = data_dir.up_log
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
    on_wait: Callable[[float], None] = lambda waited_s: None,
    child: subprocess.Popen[bytes] | None = None,
    until: Callable[[UpState], bool] = lambda up: up.phase == "ready",
) -> UpState:
    """Follow the supervisor's state until ``until`` holds; raises StartFailed when it fails or takes too long.

    ``on_wait`` is called now and then while the state stays the same, with the seconds since the begin.
    """
    begin_s = changed_s = clock.monotonic()
    seen: UpState | None = None
    while True:
        up = state.read(data_dir.state_file)
        if up is not None and up != seen:
            seen, changed_s = up, clock.monotonic()
            on_change(up)
        elif clock.monotonic() - changed_s > _REMIND_S:
            changed_s = clock.monotonic()
            on_wait(changed_s - begin_s)
        if seen is not None:
            if seen.phase == "failed" and child is not None:
                # It is about to end; nobody should find it alive after the error was shown.
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=10)
            _check(data_dir, seen)
            if until(seen):
                return seen
        if (child is not None and child.poll() is not None) or (child is None and not state.is_up(data_dir)):
            # It may have written its last words just before it ended.
            last = state.read(data_dir.state_file)
            if last is not None:
                _check(data_dir, last)
            words = logs.last_words(data_dir.up_log) or "it has said nothing"
            raise StartFailed(f"the supervisor has ended: {words}", hint=f"see {data_dir.up_log}")
        if clock.monotonic() - begin_s > timeout_s:
            raise _too_late(data_dir, seen, timeout_s)
        clock.wait(_POLL_S)


def _too_late(data_dir: DataDir, seen: UpState | None, timeout_s: float) -> StartFailed:
    late = [s for s in seen.services if s.state != "ready"] if seen and not seen.trouble else []
    log = late[0].log if late else (seen and seen.log) or data_dir.up_log
    reasons = "; ".join(seen.not_ready or [seen.detail or seen.phase]) if seen else "the supervisor says nothing"
    status, down = (invocation.line(data_dir.root, word) for word in ("status", "down"))
    return StartFailed(
        f"the platform is not ready after {timeout_s:.0f} s: {reasons}",
        hint=f"see {log}; it goes on starting: `{status}` shows how far it is, `{down}` ends it",
    )


def _check(data_dir: DataDir, up: UpState) -> None:
    if up.phase == "failed":
        raise StartFailed(up.error, hint=up.hint)
    crashing = [service for service in up.services if service.state == "crashing"]
    if crashing:
        first = crashing[0]
        stop = invocation.line(data_dir.root, "down")
        raise StartFailed(f"{first.name} {first.reason}", hint=f"see {first.log}; `{stop}` ends the rest")


def down(data_dir: DataDir, *, timeout_s: float, clock: Clock, say: Callable[[str], None]) -> bool:
    """End the platform and what it left behind; returns whether there was any. Raises Unavailable if it resists."""
    if not data_dir.root.is_dir():
        return False
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
            say(f"stopping the database of {data_dir.root}")
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
    say(f"stopping the platform of {data_dir.root} (pid {up.pid})")
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
