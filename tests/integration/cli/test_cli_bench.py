"""octavo bench modes: a real process of the worker measures a small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import make_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench-model")
    make_llama(folder, hidden_size=96, head_dim=16, intermediate_size=96, max_position_embeddings=128)
    return folder


def octavo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "octavo_cli", *words], capture_output=True, text=True, check=False)


def test_every_precision_is_measured_or_refused_with_its_reason(model: Path) -> None:
    run = octavo("bench", "modes", str(model), "--batches", "1,3", "--prompt", "5", "--output", "4", "--json")
    assert run.returncode == 0, run.stderr
    found = {entry["precision"]: entry for entry in json.loads(run.stdout)}
    assert list(found) == ["float32", "bfloat16", "w8a8", "w4a8", "w4a16"]
    assert all("4 bits" in found[name]["reason"] for name in ("w4a8", "w4a16"))
    # Equal machines choose equally: the flag names what the rules say, not what was fastest here.
    assert [found[name]["exact"] for name in ("float32", "bfloat16", "w8a8")] == [False, True, True]
    assert sum(entry.get("is_auto", False) for entry in found.values()) == 1
    assert found["w8a8"]["weight_bytes"] < found["float32"]["weight_bytes"] / 3
    # Matrices are padded to 16 rows.
    assert found["bfloat16"]["weight_bytes"] == pytest.approx(found["float32"]["weight_bytes"] / 2, rel=0.05)
    assert all(set(found[n]["tokens_per_s"]) == {"1", "3"} for n in ("float32", "bfloat16", "w8a8"))
    assert all(speed > 0 for n in ("float32", "bfloat16", "w8a8") for speed in found[n]["tokens_per_s"].values())


@pytest.mark.parametrize("option", ["--prompt", "--output", "--threads"])
def test_sizes_that_measure_nothing_are_refused_by_name(option: str) -> None:
    run = octavo("bench", "modes", option, "0")
    assert run.returncode == 2
    assert option in run.stderr and "Traceback" not in run.stderr


def test_what_cannot_be_measured_is_said_in_a_line(model: Path, tmp_path: Path) -> None:
    for words in (["nowhere"], [str(model), "--batches", "0"], [str(model), "--batches", "two"]):
        run = octavo("bench", "modes", *words)
        assert run.returncode != 0
        assert "Traceback" not in run.stderr
