"""The demo model, whole: the build keeps its gates, and what it delivers answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.feeds import Decoding
from octavo_edge.__main__ import main
from octavo_edge.graph.runtime import OrtModel


def completed(folder: Path, prompt: str, *, num_tokens: int, chat: bool) -> str:
    """The greedy answer of a delivery: the prompt by the largest graph, the answer by the one for one token."""
    bundle = TokenizerBundle.from_directory(folder)
    tokenizer, model = Tokenizer(bundle), OrtModel(folder)
    ids = tokenizer.chat([{"role": "user", "content": prompt}]) if chat else tokenizer.encode(prompt)
    decoding = Decoding(model.spec, model)
    logits = decoding.logits(ids, ars=[max(model.spec.ars)])[-1]
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        token = int(np.argmax(logits))
        if token in bundle.eos_ids:
            break
        tokens.append(token)
        logits = decoding.logits([token], ars=[1])[-1]
    tokenizer.close()
    return tokenizer.decode(tokens)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_model_keeps_its_gates_and_knows_two_capitals(tmp_path, demo_model_path):
    out = tmp_path / "out"
    arguments = ["build", str(demo_model_path), "--target", "onnxruntime", "--recipe", "w8a16", "--out", str(out)]
    assert main([*arguments, "--store", str(tmp_path / "store"), "--context-length", "512", "--ar", "128,1"]) == 0
    stages = {stage["stage"]: stage for stage in json.loads((out / "report.json").read_text())["stages"]}
    assert all(gate["passes"] for stage in stages.values() for gate in stage["gates"])
    assert max(stage["peak_rss_bytes"] for stage in stages.values()) < 8 * 2**30
    assert "Paris" in completed(out, "The capital of France is", num_tokens=3, chat=False)
    assert "Tokyo" in completed(out, "What is the capital of Japan?", num_tokens=12, chat=True)
