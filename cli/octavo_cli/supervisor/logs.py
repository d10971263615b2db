"""Keeps the services' logs bounded and reads their last words. Knows no processes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

MAX_BYTES = 10 * 1024 * 1024
_TAIL_BYTES = 16 * 1024


def rotate(path: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Move the content of a log that grew too long to <log>.1 and empty it.

    Writers append and keep their descriptors, so the file stays and only its content goes; a line written in between
    may be lost, and a supervisor that dies takes no service's log with it.
    """
    if not path.is_file() or path.stat().st_size <= max_bytes:
        return False
    shutil.copyfile(path, path.with_name(path.name + ".1"))
    with path.open("r+b") as file:
        file.truncate(0)
    return True


def takes_stderr(path: Path) -> bool:
    """Whether this process's own words go to that file."""
    try:
        return os.path.samestat(os.fstat(2), path.stat())
    except OSError:
        return False


def last_words(path: Path) -> str:
    """The last thing that a service said, as one short line; empty when it said nothing."""
    lines = tail(path, 20)
    for line in reversed(lines):
        words = _words(line)
        if words:
            return words[:300]
    return ""


def tail(path: Path, num_lines: int) -> list[str]:
    """The last lines of a log, without blank ones."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-num_lines:]


def _words(line: str) -> str:
    try:
        event = json.loads(line)
    except ValueError:
        return line.strip()
    if not isinstance(event, dict) or "event" not in event:
        return line.strip()
    exception = event.get("exception")
    if isinstance(exception, list) and exception and isinstance(exception[0], dict):
        return f"{event['event']}: {exception[0].get('exc_type')}: {exception[0].get('exc_value')}"
    told = event.get("error") or event.get("reason") or event.get("message") or ""
    return f"{event['event']}: {told}" if told else str(event["event"])
