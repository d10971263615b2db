"""Starts the child and tells what became of it: results, the vendor's words, or the signal that ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_common.errors import FailedPrecondition

__all__ = ["ChildResult", "GraphResult", "ToolchainCrashed", "ToolchainFailed", "run_child"]

_CHILD = "octavo_edge.targets.qnn_htp.child"
_NOTES = ("LIBNATIVE",)  # what the simulator says of itself at every start
# The compiler leaves what pads a constant as the allocator gave it, and finds out by all bytes what graphs may share:
# scales of blocks that lie behind other leftovers are kept once for each graph. glibc fills what it gives with zeros,
# but for blocks of up to 1,032 bytes out of a thread's cache.
_ZEROED = {"MALLOC_PERTURB_": "255"}


class ToolchainFailed(FailedPrecondition):
    """The vendor's compiler or simulator refused; the message has its words."""

    code = "TOOLCHAIN_FAILED"


class ToolchainCrashed(ToolchainFailed):
    """The vendor's library ended its process."""

    code = "TOOLCHAIN_CRASHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResult:
    """Seconds that one graph took."""

    compile_seconds: float
    run_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """What a child has done, graph by graph, and its most resident bytes."""

    graphs: tuple[GraphResult, ...]
    peak_rss_bytes: int


def run_child(
    folder: Path,
    *,
    graphs: Sequence[Mapping[str, Any]],
    options: Mapping[str, str],
    timeout_s: float,
    num_threads: int = 2,
    command: Sequence[str] = (sys.executable, "-m", _CHILD),
) -> ChildResult:
    """Run the graphs of a job in a process of their own; ``folder`` is for its files. See child for what a graph has.

    Raises:
        ToolchainCrashed: The process ended by a signal.
        ToolchainFailed: It refused, or took longer than ``timeout_s``.
    """
    job, result, log = folder / "job.json", folder / "result.json", folder / "log.txt"
    job.write_text(json.dumps({"graphs": list(graphs), "options": dict(options), "num_threads": num_threads}))
    result.unlink(missing_ok=True)
    environment = {**os.environ, **_ZEROED, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with log.open("w") as output:
        child = subprocess.Popen(
            [*command, str(job), str(result)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ToolchainFailed(f"the HTP tool-chain was not done after {timeout_s:.0f} s") from None
        finally:
            # Also where the build is interrupted: nobody would wait for it.
            child.kill()
            child.wait()
    words = _last_words(log)
    if code < 0:
        name = signal.Signals(-code).name
        raise ToolchainCrashed(f"the HTP tool-chain crashed ({name}){f'; its last words: {words}' if words else ''}")
    if code or not result.exists():
        raise ToolchainFailed(f"the HTP tool-chain failed: {words or f'exit code {code}'}")
    document = json.loads(result.read_text())
    return ChildResult(
        graphs=tuple(
            GraphResult(compile_seconds=entry["compile_seconds"], run_seconds=tuple(entry.get("run_seconds", ())))
            for entry in document["graphs"]
        ),
        peak_rss_bytes=document["peak_rss_bytes"],
    )


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not any(note in line for note in _NOTES)]
    refused = [line for line in lines if "Unsupported nodes" in line]
    return " | ".join(text[:600] for text in (*refused[-1:], *lines[-1:]))
