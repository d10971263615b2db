"""What a user sees of a stream that pauses or breaks: the command against a gateway that plays a script."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

# The script player of the SDK's tests, which are in the next folder.
sys.path.append(str(Path(__file__).parents[1] / "sdk"))

from scripted_gateway import TOKENS, Gateway, Platform, text_of


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    one = Gateway("a", Platform())
    yield one
    one.stop()


def _octavo(folder: Path, address: str, *words: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    command = [sys.executable, "-m", "octavo_cli", "--data-dir", str(folder / "data"), "--address", address, *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("script", "words", "says"),
    [
        (["accept", (0, 3), "hang"], ("generate", "hi"), "the platform does not answer; waiting up to 60 s for job"),
        (None, ("jobs", "watch", "job-0"), "the platform does not answer; waiting up to 60 s for job job-0"),
    ],
    ids=["generate", "watch"],
)
def test_a_platform_that_is_away_for_a_while_is_said_once_and_the_rest_arrives(
    gateway: Gateway, tmp_path: Path, script, words, says
) -> None:
    if script is None:
        gateway.platform.states["job-0"] = 3
        gateway.scripts.append([3, "hang"])
    else:
        gateway.scripts.append(script)
    address = gateway.start().address
    with _octavo(tmp_path, address, *words) as process:
        assert process.stdout is not None and process.stderr is not None
        # The first word of it: then it has been accepted.
        first = process.stdout.read(1) if script else process.stderr.readline()
        assert first
        gateway.stop()
        told = process.stderr.readline()
        assert told.startswith(says)
        gateway.start(address)
        # Not by communicate: it does not know what was read ahead.
        out, err = process.stdout.read(), process.stderr.read()
    assert "does not answer" not in err
    if script:
        assert process.returncode == 0 and first + out == text_of(TOKENS) + "\n"
        assert "job job-0" in told and "job job-0" in err


def test_an_error_after_a_part_of_the_text_begins_on_a_new_line(gateway: Gateway, tmp_path: Path) -> None:
    gateway.scripts.append(["accept", (0, 3), "cancelled"])
    with _octavo(tmp_path, gateway.start().address, "generate", "hi") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == text_of(TOKENS[:3]) + "\n" and err.startswith("error: the job was cancelled")


def test_an_error_before_all_text_leaves_stdout_empty(gateway: Gateway, tmp_path: Path) -> None:
    gateway.scripts.append(["accept", grpc.StatusCode.FAILED_PRECONDITION])
    with _octavo(tmp_path, gateway.start().address, "generate", "hi") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and out == "" and err.startswith("error: ")


def test_a_short_pause_is_not_worth_a_word(gateway: Gateway, tmp_path: Path) -> None:
    gateway.scripts.append(["accept", (0, 3), "hang"])
    address = gateway.start().address

    def restart() -> None:
        gateway.stop()
        gateway.start(address)

    with _octavo(tmp_path, address, "generate", "hi") as process:
        assert process.stdout is not None and process.stdout.read(1)
        timer = threading.Timer(0.1, restart)
        timer.start()
        _, err = process.communicate(timeout=60)
        timer.join()
    assert process.returncode == 0 and "does not answer" not in err


def test_what_an_answer_follows_is_read_from_its_file(gateway: Gateway, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    words = ("generate", "hi", "-n", "2", "--json-schema", str(schema), "--min-p", "0.1", "--logprobs", "2")
    with _octavo(tmp_path, gateway.start().address, *words) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    asked = gateway.platform.asked[-1]
    assert asked.structured_output.json_schema == '{"type": "object"}'
    assert (asked.n, asked.sampling.min_p, asked.sampling.logprobs) == (2, 0.1, 2)
    # Of several answers each has a line above it.
    assert "--- 1 of 2 (length)" in err and out.startswith(text_of(TOKENS))


def test_an_answer_cannot_follow_two_things(tmp_path: Path) -> None:
    words = ("generate", "hi", "--regex", "a", "--choice", "b")
    with _octavo(tmp_path, "127.0.0.1:1", *words) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "regex and choice were both given" in err
