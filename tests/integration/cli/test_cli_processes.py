"""The supervisor's hands on real processes: they are kept alive, die with their parent, and are found again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from octavo_cli.supervisor import processes
from octavo_cli.supervisor.keeper import Keeper
from octavo_cli.supervisor.plan import MARK, ServiceSpec
from octavo_cli.supervisor.restarts import RestartPolicy
from octavo_common.clock import SystemClock

QUICK = RestartPolicy(settled_s=0.3, max_early=3, base_s=0.01, seldom_s=60.0)


def _until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


async def _until_async(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(_until, condition)


@pytest.fixture
async def keep(tmp_path: Path) -> AsyncIterator[Callable[[str], Keeper]]:
    """Keeps a Python program running."""
    keepers: list[Keeper] = []
    tasks: list[asyncio.Task[None]] = []

    def start(code: str) -> Keeper:
        spec = ServiceSpec(
            name=f"s-{len(keepers)}", role="worker", argv=(sys.executable, "-c", code), env={MARK: str(tmp_path)}
        )
        keeper = Keeper(
            spec, environ=dict(os.environ), log_file=tmp_path / f"{spec.name}.log", clock=SystemClock(), policy=QUICK
        )
        keepers.append(keeper)
        tasks.append(asyncio.create_task(keeper.run()))
        return keeper

    yield start
    for keeper in keepers:
        keeper.stop()
        keeper.kill()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert processes.marked(tmp_path) == []


async def test_a_process_that_is_killed_is_started_again(keep) -> None:
    keeper = keep("import time; time.sleep(60)")
    await _until_async(lambda: keeper.pid)
    first = keeper.pid
    keeper.tell("")
    assert keeper.is_ready
    await asyncio.sleep(0.5)  # past settled_s
    os.kill(first, signal.SIGKILL)
    await _until_async(lambda: keeper.pid not in (None, first))
    state = keeper.state()
    assert state.restarts == 1 and state.state == "starting" and not keeper.is_crashing


async def test_a_process_that_cannot_start_is_reported_with_its_last_words(keep) -> None:
    keeper = keep("raise SystemExit('no such thing')")
    await _until_async(lambda: keeper.is_crashing)
    state = keeper.state()
    assert (state.state, state.restarts, state.pid) == ("crashing", 3, None)
    assert "exit code 1" in state.reason and "no such thing" in state.reason


async def test_a_process_that_can_never_start_is_given_up_with_its_words(keep) -> None:
    code = "import sys; sys.stderr.write('octavo-worker: /m.gguf is truncated\\n'); sys.exit(78)"
    keeper = keep(code)
    await _until_async(lambda: keeper.failure)
    state = keeper.state()
    assert (keeper.failure, state.state, state.restarts, state.pid) == ("/m.gguf is truncated", "failed", 0, None)


async def test_a_process_that_was_ready_once_is_tried_again_whatever_it_says(keep, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"""
import pathlib, sys, time
mark = pathlib.Path({str(mark)!r})
if mark.exists(): sys.exit(78)
mark.touch(); time.sleep(60)
"""
    keeper = keep(code)
    await _until_async(mark.exists)
    keeper.tell("")
    os.kill(keeper.pid or 0, signal.SIGKILL)
    await _until_async(lambda: keeper.is_crashing)
    assert not keeper.failure


async def test_what_a_process_leaves_in_its_group_ends_with_it(keep, tmp_path: Path) -> None:
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    keeper = keep(code)
    await _until_async(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = int((tmp_path / "pid").read_text())
    assert keeper.pid is not None
    os.kill(keeper.pid, signal.SIGKILL)
    await _until_async(lambda: processes.start_ticks(child) is None)


async def test_stop_is_final(keep) -> None:
    keeper = keep("import time; time.sleep(60)")
    await _until_async(lambda: keeper.pid)
    keeper.stop()
    await _until_async(lambda: keeper.pid is None)
    await asyncio.sleep(0.3)
    assert keeper.pid is None and keeper.state().state == "stopped"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from octavo_cli.supervisor.processes import spawn
child = spawn([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), Path({str(tmp_path / "log")!r}),
              cwd=Path("/"))
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert processes.start_ticks(child) is not None
        parent.kill()
    _until(lambda: processes.start_ticks(child) is None)


def test_only_processes_with_the_mark_are_ended_also_those_that_resist(tmp_path: Path) -> None:
    resist = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    environ = {**os.environ, MARK: str(tmp_path)}
    ours = subprocess.Popen([sys.executable, "-c", resist], env=environ, stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: "/x"})
    try:
        assert ours.stdout is not None and ours.stdout.readline()
        said: list[str] = []
        assert processes.end_marked(tmp_path, 0.3, said.append) == 1
        assert processes.start_ticks(ours.pid) is None and str(ours.pid) in said[0]
        assert other.poll() is None and psutil.pid_exists(other.pid)
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def test_a_process_is_known_by_its_start_not_by_its_number_alone() -> None:
    started = processes.start_ticks(os.getpid())
    assert processes.is_same(os.getpid(), started)
    assert started is not None and not processes.is_same(os.getpid(), started + 1)
    assert not processes.is_same(None, None) and not processes.is_same(2**22 + 1, started)
