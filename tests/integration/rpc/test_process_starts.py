"""Processes are started without fork: the fork handlers of gRPC crash children of a process that is in its calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A prepare handler of libc runs before every fork, and before no vfork.
COUNT_FORKS = """
import ctypes, sys, tempfile
from pathlib import Path

forks = []
handler = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))
assert ctypes.CDLL(None).__register_atfork(handler, None, None, None) == 0
folder = Path(tempfile.mkdtemp())
try:
    {start}
finally:
    __import__("shutil").rmtree(folder)
assert not forks, f"{{len(forks)}} forks"
__import__("os").fork() or __import__("os")._exit(0)
__import__("os").wait()
assert forks, "the handler does not count"
"""
STARTS = {
    "postgres": """
    from octavo_common.db.embedded import EmbeddedPostgres
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder)
    server.start()
    server.stop()
""",
    "services": """
    import os
    from octavo_cli.supervisor.processes import spawn
    started = spawn([sys.executable, "-c", "print('started')"], os.environ, folder / "log", cwd=folder)
    assert started.wait() == 0
    assert (folder / "log").read_text() == "started\\n"
""",
    "template helper": """
    from octavo_common.clock import SystemClock
    from octavo_common.text.helper import Helper
    Helper(SystemClock()).kill()
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="counts forks in the way of glibc")
@pytest.mark.parametrize("what", list(STARTS))
def test_starting_a_process_forks_nothing(what: str) -> None:
    code = COUNT_FORKS.format(start=STARTS[what].strip())
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
