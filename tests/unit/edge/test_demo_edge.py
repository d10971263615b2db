"""The demo model, whole: the build keeps its gates, and the bundle that it delivers answers on a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo_device.command import main as device
from octavo_edge.__main__ import main


def built(folder: Path, model: Path, *options: str) -> dict[str, dict]:
    """Build into `folder/out`; the reports of the stages by name."""
    arguments = ["build", str(model), "--target", "onnxruntime", "--out", str(folder / "out"), *options]
    assert main([*arguments, "--store", str(folder / "store")]) == 0
    stages = json.loads((folder / "out" / "report.json").read_text())["stages"]
    assert all(gate["passes"] for stage in stages for gate in stage["gates"])
    return {stage["stage"]: stage for stage in stages}


def said(capsys, *arguments: str) -> str:
    """What the device's runner prints."""
    assert device([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_model_keeps_its_gates_and_knows_two_capitals(tmp_path, demo_model_path, capsys):
    stages = built(tmp_path, demo_model_path, "--recipe", "w8a16", "--context-length", "512", "--ar", "128,32,1")
    assert max(stage["peak_rss_bytes"] for stage in stages.values()) < 8 * 2**30
    out = str(tmp_path / "out")
    assert "all 189 outputs reach 60 dB" in said(capsys, "verify", out)
    assert "Paris" in said(capsys, "run", out, "--raw", "--prompt", "The capital of France is", "--max-tokens", "3")
    assert "Tokyo" in said(capsys, "run", out, "--prompt", "What is the capital of Japan?", "--max-tokens", "12")
