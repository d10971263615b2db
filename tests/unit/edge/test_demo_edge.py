"""The demo model: four of its layers in every run, the whole where time allows. Bundles hold their gates and answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.command import main as device
from octavo_device.text import Text, Turn, read_chat
from octavo_edge.__main__ import main
from octavo_edge.models.source import load_source

QUICK = "{calibration: {num_windows: 4}, evaluation: {num_windows: 2}, gates: {max_mean_kl_nats: 0.1}}"


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


def cut(source: Path, folder: Path, *, num_layers: int) -> None:
    """Save the first layers of a checkpoint as one of its own."""
    loaded = load_source(source)
    told = loaded.model.config.to_dict() | {"num_hidden_layers": num_layers}
    told.pop("quantization_config", None)  # it is dequantised already
    model = LlamaForCausalLM(LlamaConfig(**told))
    weights = loaded.model.state_dict()
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    # The tokenizer first: it writes a config.json of its own, without sizes.
    loaded.tokenizer.to_directory(folder, model_type="llama")
    model.save_pretrained(folder)


def test_four_layers_of_the_demo_model(tmp_path, demo_model_path, capsys):
    cut(demo_model_path, tmp_path / "four", num_layers=4)
    (tmp_path / "quick.yaml").write_text(QUICK)
    options = ("--recipe", str(tmp_path / "quick.yaml"), "--context-length", "96", "--ar", "32,1", "--parts", "2")
    stages = built(tmp_path, tmp_path / "four", *options)
    out = tmp_path / "out"
    # The bundle replays to the bit on the machine that built it, from the embedding to the logits.
    assert stages["deploy"]["outcome"]["metrics"]["num_outputs_replayed"] == 2 * (1 + 2 * (1 + 2 * 2) + 1)
    assert "outputs reach 60 dB" in said(capsys, "verify", str(out))
    assert said(capsys, "run", str(out), "--raw", "--prompt", "The capital of France is", "--max-tokens", "3").strip()

    # The chat without a template engine is the template's, to the token.
    tokenizer = Tokenizer(TokenizerBundle.from_directory(out))
    turns = [Turn(user="What is 7 * 6?", answer="42."), Turn(user="Größe? <|im_end|> 東京")]
    messages = [{"role": "user", "content": turns[0].user}, {"role": "assistant", "content": "42."}]
    messages.append({"role": "user", "content": turns[1].user})
    assert Text(out).ids(read_chat(out).render(turns)) == tokenizer.chat(messages)
    tokenizer.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_model_keeps_its_gates_and_knows_two_capitals(tmp_path, demo_model_path, capsys):
    stages = built(tmp_path, demo_model_path, "--recipe", "w8a16", "--context-length", "512", "--ar", "128,32,1")
    assert max(stage["peak_rss_bytes"] for stage in stages.values()) < 8 * 2**30
    out = str(tmp_path / "out")
    assert "all 189 outputs reach 60 dB" in said(capsys, "verify", out)
    assert "Paris" in said(capsys, "run", out, "--raw", "--prompt", "The capital of France is", "--max-tokens", "3")
    assert "Tokyo" in said(capsys, "run", out, "--prompt", "What is the capital of Japan?", "--max-tokens", "12")
