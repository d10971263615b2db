"""Starts processes that die with their parent, and finds and ends those that are provably ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from octavo_cli.supervisor.plan import MARK
from octavo_common.clock import Clock

_POLL_S = 0.2

# A function that runs between fork and exec would do the same, and make Popen fork: the fork handlers of gRPC, which
# the supervisor uses to look at gateways, can crash the child.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(argv: Iterable[str], env: Mapping[str, str], log: Path, *, cwd: Path) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, its words appended to ``log``. On Linux it ends when this thread does."""
    command = list(argv)
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )


async def wait_end(process: subprocess.Popen[bytes], clock: Clock) -> int:
    """Wait until a child ends; returns its exit code. Where the system tells, nothing wakes up before that."""
    fileno = _open_pidfd(process.pid)
    if fileno is None:
        while (code := process.poll()) is None:
            await clock.sleep(_POLL_S)
        return code
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(fileno, ended.set)
    try:
        await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fileno)
        os.close(fileno)
    return process.wait()


def _open_pidfd(pid: int) -> int | None:
    if sys.platform == "linux":
        with suppress(OSError):  # an old kernel, or no descriptors left
            return os.pidfd_open(pid)
    return None


def start_ticks(pid: int) -> int | None:
    """When a process began; None when there is none. With the pid it names one process for good."""
    try:
        # The command's name may hold blanks and brackets; fields are counted after its last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[19])
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    except (OSError, IndexError, ValueError):
        return None
    with suppress(psutil.Error):
        return int(psutil.Process(pid).create_time())
    return None


def is_same(pid: int | None, started: int | None) -> bool:
    """True when the process lives and began then."""
    return pid is not None and started is not None and start_ticks(pid) == started


def marked(data_dir: Path) -> list[psutil.Process]:
    """All living processes of the platform in ``data_dir``, by the mark that they inherit in their environment."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == str(data_dir):
                found.append(process)
    return found


def end_marked(data_dir: Path, grace_s: float, say: Callable[[str], None]) -> int:
    """End all processes of the platform: SIGTERM, then SIGKILL after ``grace_s``. Returns how many there were."""
    processes = marked(data_dir)
    for process in processes:
        with suppress(psutil.Error):
            say(f"ending {process.pid} {' '.join(process.cmdline()[1:4])}")
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    # Processes that were being started meanwhile are found by a second look.
    for process in {*alive, *marked(data_dir)}:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
    return len(processes)


def kill_group(pid: int) -> None:
    """Kill what is left of a process group whose leader has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_pip() -> None:
    """Kill the downloads that this process has started: there is no other way to interrupt one."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "pip" in child.cmdline():
                child.kill()
