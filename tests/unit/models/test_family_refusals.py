"""What a family does not have is refused by the name of the file and of the field, with what would be supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from checkpoints import make_model, write_gguf

from octavo_worker.models.base import InvalidModel
from octavo_worker.models.config import parse_config
from octavo_worker.models.registry import load_model

WHERE = "/models/tiny/config.json"
ROPE = {"rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, **ROPE}


def config(architecture: str, **values: Any) -> dict[str, Any]:
    """A sound config.json, with some fields changed."""
    sound = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 330,
        "max_position_embeddings": 256,
    }
    return {"architectures": [f"{architecture}ForCausalLM"], **sound, **values}


@pytest.mark.parametrize(
    ("architecture", "values", "field", "supported"),
    [
        ("Gemma3", {}, "architectures", "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"),
        ("Qwen3Moe", {}, "architectures", "Qwen3ForCausalLM"),
        ("Qwen2", {"hidden_act": "gelu"}, "hidden_act", "silu"),
        ("Qwen3", {"mlp_bias": True}, "mlp_bias", "false"),
        ("Mistral", {"attention_bias": True}, "attention_bias", "false"),
        ("Mistral", {"sliding_window": 0}, "sliding_window", None),
        ("Mistral", {"sliding_window": "4096"}, "sliding_window", None),
        ("Mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types", "sliding_attention"),
        ("Qwen2", {"use_sliding_window": 1}, "use_sliding_window", None),
        ("Qwen2", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers", None),
        ("Qwen2", {"layer_types": ["full_attention"]}, "layer_types", None),
        ("Qwen2", {"layer_types": "full_attention"}, "layer_types", None),
        ("Qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window", None),
        ("Qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types", "full_attention"),
        ("Qwen3", {"rope_parameters": {"rope_type": "mrope", **ROPE}}, "rope_type", "default, linear, dynamic"),
        ("Qwen3", {"rope_parameters": {"full_attention": YARN}}, "rope_parameters", "one object for all layers"),
        ("Qwen2", {"rope_scaling": {"type": "yarn", "factor": 0}}, "factor", None),
        ("Qwen2", {"rope_parameters": ROPE, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling", "alone"),
        ("Qwen3", {"head_dim": 7}, "head dims", None),
        ("Qwen2", {"quantization_config": {"quant_method": "awq"}}, "quantization_config", "GGUF"),
    ],
)
def test_a_configuration_is_refused_by_file_and_field(
    architecture: str, values: dict[str, Any], field: str, supported: str | None
) -> None:
    with pytest.raises(InvalidModel) as caught:
        parse_config(config(architecture, **values), WHERE)
    assert WHERE in caught.value.message
    assert field in caught.value.message
    if supported is not None:
        assert supported in (caught.value.hint or "")


@pytest.mark.parametrize("architecture", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_a_sound_configuration_is_taken(architecture: str) -> None:
    assert parse_config(config(architecture), WHERE).family == architecture.lower()


@pytest.mark.parametrize(
    ("family", "tensor"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_checkpoint_without_what_its_family_has_is_refused_by_tensor(
    tmp_path: Path, family: str, tensor: str
) -> None:
    theirs = make_model(tmp_path, family)
    weights = {name: value for name, value in theirs.state_dict().items() if name not in (tensor, "lm_head.weight")}
    theirs.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(InvalidModel, match=f"tensor {tensor} is missing") as caught:
        load_model(tmp_path)
    assert str(tmp_path) in caught.value.message


def test_biases_that_a_family_has_no_place_for_are_refused_by_tensor(tmp_path: Path) -> None:
    theirs = make_model(tmp_path / "hf", "qwen2")

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_output.bias", theirs.model.norm.weight.detach().numpy())

    with pytest.raises(InvalidModel, match=r"m\.gguf: the tensor model.layers.0.self_attn.o_proj.bias has no place"):
        load_model(write_gguf(tmp_path / "m.gguf", theirs, extra=extra))


def test_windows_in_some_layers_of_a_gguf_file_are_refused_by_field(tmp_path: Path) -> None:
    theirs = make_model(tmp_path / "hf", "qwen3")

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(8)
        writer.add_sliding_window_pattern([True, False])

    with pytest.raises(InvalidModel, match=r"attention\.sliding_window_pattern") as caught:
        load_model(write_gguf(tmp_path / "m.gguf", theirs, extra=extra))
    assert "m.gguf" in caught.value.message


def test_architectures_of_gguf_files_that_we_do_not_run_are_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InvalidModel, match=r"m\.gguf: general\.architecture is 'qwen3moe'") as caught:
        load_model(path)
    assert caught.value.hint == "supported: llama, qwen2, qwen3"
