"""Runs last of this folder: after all that was refused, the platform is as it was."""

from __future__ import annotations

import json

import pytest
from octavo_process import Octavo
from rims_world import DEMO, Rims

pytestmark = pytest.mark.e2e


def test_it_still_serves_and_nothing_was_restarted(platform: Octavo, rims: Rims) -> None:
    rims.settled()
    with rims.client() as client:
        answer = client.generate("The capital of France is", model=DEMO, max_tokens=1, temperature=0.0)
        assert "".join(c.text for c in answer) == " Paris"
    status = platform.status()
    assert status["phase"] == "ready" and [s["restarts"] for s in status["services"]] == [0] * len(status["services"])


def test_no_log_holds_a_traceback_or_an_error_of_ours(platform: Octavo) -> None:
    for file in (platform.data_dir / "logs").glob("*.log"):
        text = file.read_text(errors="replace")
        first = text.find("Traceback")
        assert first < 0, f"{file.name}: {text[max(0, first - 1000) : first + 4000]}"
        for line in text.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            assert event.get("level") not in ("error", "critical") and "exception" not in event, f"{file.name}: {line}"
