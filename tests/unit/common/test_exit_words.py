"""How a service begins, and how it ends when it cannot start."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from octavo_common.errors import Internal, InvalidArgument, OctavoError, Unavailable
from octavo_common.exits import FAILED, MISCONFIGURED, explain
from octavo_common.rpc.server import AddressInUse


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("no\nmodel", hint="set\n one"), MISCONFIGURED),
        (Unavailable("no\nmodel", hint="set\n one"), FAILED),
        (Internal("no\nmodel", hint="set\n one"), FAILED),
        # Whoever has the port may leave it.
        (AddressInUse("no\nmodel", hint="set\n one"), FAILED),
    ],
)
def test_a_service_says_in_one_line_why_it_ends_and_by_its_code_whether_to_try_again(
    error: OctavoError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain("octavo-x", error) == code
    assert capsys.readouterr().err == "octavo-x: no model - set one\n"


def test_what_reading_the_settings_has_to_say_goes_to_stderr_as_a_log_line() -> None:
    code = """
import os
from octavo_common.settings import CommonSettings
from octavo_common.starting import start

async def run(settings):
    return 7 if settings.lease_s == 3 else 1

raise SystemExit(start("octavo-x", CommonSettings, run, os.environ))
"""
    environ = {"PATH": os.environ["PATH"], "OCTAVO_LEASE_S": "3", "OCTAVO_LEESE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    (line,) = [json.loads(text) for text in done.stderr.splitlines()]
    assert (line["event"], line["variable"], line["service"]) == ("settings.unknown", "OCTAVO_LEESE", "octavo-x")
