"""Runs a vendor's library in a process of its own, whose crash, threads and signal handlers are its own.

A child is a module that calls ``answer``: it takes an order as JSON on stdin and answers with JSON on the last line of
stdout, since libraries say much on both streams. Knows no tool-chain.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["TIMEOUT_S", "LibraryFailed", "answer", "ask"]

# Of one order.
TIMEOUT_S = 3600.0
_LAST_CHARS = 500


class LibraryFailed(RuntimeError):
    """Nothing came of it; the message has the library's words, or the signal that ended it."""


def ask(module: str, order: Mapping[str, Any], *, what: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Give a child its order; its answer. ``what`` names the library and its work in messages ("ExecuTorch, head").

    Raises:
        LibraryFailed: It could not, crashed, or took longer than ``timeout_s``.
    """
    command = [sys.executable, "-m", module]
    try:
        run = subprocess.run(
            command, input=json.dumps(order), capture_output=True, text=True, check=False, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        raise LibraryFailed(f"{what}: not done after {timeout_s:.0f} s") from None
    if run.returncode < 0:
        raise LibraryFailed(f"{what}: it crashed ({signal.Signals(-run.returncode).name})")
    if run.returncode:
        raise LibraryFailed(f"{what}: it failed: {' '.join(run.stderr.split())[-_LAST_CHARS:]}")
    return json.loads(run.stdout.splitlines()[-1])


def answer(work: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """The child's side: read the order, work, answer."""
    answered = work(json.load(sys.stdin))
    sys.stdout.write(f"\n{json.dumps(answered)}\n")
