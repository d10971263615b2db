from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_config, make_llama
from safetensors.torch import load_file, save_file

from octavo_common.errors import InvalidArgument, OctavoError
from octavo_common.text.bundle import UnsupportedTokenizer
from octavo_worker.models.base import InvalidModel
from octavo_worker.models.registry import load_model

FILE = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound checkpoint to damage."""
    make_llama(tmp_path / "m", num_hidden_layers=1)
    return tmp_path / "m"


def _refused(folder: Path) -> str:
    with pytest.raises(OctavoError) as caught:
        load_model(folder)
    assert isinstance(caught.value, InvalidModel | UnsupportedTokenizer)
    assert str(folder) in caught.value.message
    return caught.value.message


def _change(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


def _change_header(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    data = (folder / FILE).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    (folder / FILE).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    for cut in [0, 1, 7, 8, 9, 100, *range(200, len(data), len(data) // 40), len(data) - 1]:
        (folder / FILE).write_bytes(data[:cut])
        _refused(folder)


def test_flipped_bytes_in_the_header_end_in_a_typed_error_or_in_a_model_that_loads(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    head = 8 + struct.unpack("<Q", data[:8])[0]
    dice, refused = random.Random(7), 0
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(dice.choice([1, 1, 3])):
            damaged[dice.randrange(head)] = dice.choice([*b'0189,"[]{}-e', 0, 0xFF])
        (folder / FILE).write_bytes(damaged)
        try:
            load_model(folder)
        except InvalidModel:
            refused += 1
    assert refused > 100


def test_a_missing_tensor_is_named(folder: Path) -> None:
    _change(folder, lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))
    assert "model.layers.0.mlp.up_proj.weight is missing" in _refused(folder)


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    _change(folder, lambda tensors: tensors.update({name: torch.zeros(24, 48)}))
    message = _refused(folder)
    assert name in message and "[24, 48]" in message and "[16, 48]" in message


def test_a_tensor_without_a_place_is_named(folder: Path) -> None:
    _change(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}))
    assert "q_norm" in _refused(folder)


def test_biases_that_the_configuration_does_not_mention_are_not_dropped_silently(folder: Path) -> None:
    _change(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}))
    assert "q_proj.bias" in _refused(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(folder: Path, value: float) -> None:
    _change(folder, lambda tensors: tensors["model.norm.weight"].__setitem__(3, value))
    assert "model.norm.weight" in _refused(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [48, -1]),
        ("shape", [2**40, 2**40]),
        ("shape", ["48"]),
        ("shape", None),
        ("shape", [float("nan")]),
        ("data_offsets", [0, 2**62]),
        ("data_offsets", [8, 0]),
        ("data_offsets", [0]),
        ("dtype", "I32"),
        ("dtype", ["F32"]),
    ],
)
def test_a_damaged_entry_is_refused_by_name(folder: Path, field: str, value: Any) -> None:
    _change_header(folder, lambda header: header["model.norm.weight"].update({field: value}))
    assert "model.norm.weight" in _refused(folder)


def test_a_header_of_absurd_length_is_refused_at_once(folder: Path) -> None:
    data = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(struct.pack("<Q", 2**62) + data[8:])
    _refused(folder)


def test_shards_that_are_missing_or_lie_elsewhere_are_refused(tmp_path: Path) -> None:
    theirs = make_llama(tmp_path)
    (tmp_path / FILE).unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    index_file = tmp_path / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    shard = index["weight_map"]["model.norm.weight"]
    original = (tmp_path / shard).read_bytes()
    (tmp_path / shard).unlink()
    assert shard in _refused(tmp_path)
    (tmp_path / shard).write_bytes(original)
    for bad in ("../../etc/passwd", "/etc/passwd"):
        changed = {**index, "weight_map": {**index["weight_map"], "model.norm.weight": bad}}
        index_file.write_text(json.dumps(changed))
        assert bad in _refused(tmp_path)
    changed = {**index, "weight_map": {**index["weight_map"], "phantom": shard}}
    index_file.write_text(json.dumps(changed))
    assert "phantom" in _refused(tmp_path)
    for damaged in ("{", "[]", '{"weight_map": 3}'):
        index_file.write_text(damaged)
        _refused(tmp_path)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None, "model_type": "gpt_neox"}, "gpt_neox"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"hidden_size": -48}, "hidden_size"),
        ({"vocab_size": 1e99}, "vocab_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"num_key_value_heads": 4}, "key-value heads"),
        ({"head_dim": 7}, "head dims"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": [0, 9999]}, "9999"),
        ({"eos_token_id": "0"}, "eos_token_id"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("inf")}}, "factor"),
        ({"rope_parameters": [1]}, "rope scaling"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
    ],
)
def test_configurations_that_we_do_not_run_are_refused_with_the_reason(
    folder: Path, values: dict[str, Any], named: str
) -> None:
    edit_config(folder, **values)
    assert named in _refused(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"architectures": ["LlamaForCausalLM"]}', "\udcff", "[" * 100_000])
def test_a_damaged_configuration_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    _refused(folder)


def test_directories_without_a_model_are_refused(tmp_path: Path) -> None:
    _refused(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    _refused(tmp_path)


def test_a_checkpoint_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in _refused(folder)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": 3}}')
    _refused(folder)


def test_a_checkpoint_without_weights_is_refused(folder: Path) -> None:
    (folder / FILE).unlink()
    assert FILE in _refused(folder)


def test_a_precision_that_we_do_not_compute_in_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="float16"):
        load_model(folder, precision="float16")
