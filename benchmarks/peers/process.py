"""A process that measures one system in the system's own environment, seen from here. Knows no system.

One request at a time; while none is under way the process sleeps on its input.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

CHILDREN = Path(__file__).parent


class ChildFailed(RuntimeError):
    """The process answered with an error, or ended."""


class Child:
    """A running child; use it as a context manager."""

    def __init__(self, python: Path, script: str, *, env: dict[str, str], log: Path) -> None:
        """``script`` lies beside this file; what the process prints goes to ``log``."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [str(python), str(CHILDREN / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **env},
            )

    def __call__(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask and wait for the answer; raises ChildFailed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ChildFailed(f"ended with {self._process.wait()}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ChildFailed(answer["error"])
        return answer

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process: its input ends; killed if it does not follow."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
