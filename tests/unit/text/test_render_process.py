"""The process that renders templates, by itself: what it says when it cannot answer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import octavo_common.text

SCRIPT = Path(str(octavo_common.text.__file__)).with_name("render_process.py")


def _message(value: dict) -> bytes:
    data = json.dumps(value).encode()
    return len(data).to_bytes(4, "little") + data


@pytest.mark.parametrize("ends", ["no room", "nobody there"])
def test_a_helper_that_cannot_answer_ends_without_a_word(ends: str) -> None:
    """Its stderr is the log of the service whose helper it is."""
    setting = {"source": "{{ text }}", "max_chars": 10**9, "max_bytes": 200 << 20, "deadline_s": 20.0}
    text = "x" * (300 << 20 if ends == "no room" else 1 << 20)
    process = subprocess.Popen([sys.executable, "-I", SCRIPT], stdin=-1, stdout=-1, stderr=-1)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(_message(setting))
    process.stdin.flush()
    assert process.stdout.read(4)
    if ends == "nobody there":
        process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(_message({"values": {"text": text}, "now": 0.0}))
        process.stdin.flush()
    assert process.wait(20) == 1
    assert process.stderr.read() == b""
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.close()
