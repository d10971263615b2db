"""Mistral, Qwen2 and Qwen3 beside Llama: random small checkpoints give the logits that transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from checkpoints import FAMILIES, edit_config, make_model, oracle, run, train_bpe, write_gguf
from transformers import AutoModelForCausalLM

from octavo_worker.models.registry import load_model

TOKENS = torch.randint(0, 330, (50,), generator=torch.Generator().manual_seed(1)).tolist()
NEW_FAMILIES = ("mistral", "qwen2", "qwen3")
UPPER = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
ROPE = {"rope_theta": 1e6}

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "mistral whose window hides nothing": ("mistral", {"sliding_window": 64}),
    "mistral with a window shorter than the prompt": ("mistral", {"sliding_window": 7}),
    "mistral that sees itself only": ("mistral", {"sliding_window": 1}),
    "mistral, untied, heads wider than hidden / heads": (
        "mistral",
        {"tie_word_embeddings": False, "head_dim": 16, "sliding_window": 16},
    ),
    "qwen2, biases of q, k and v": ("qwen2", {}),
    "qwen2, untied, one key-value head": ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 1}),
    "qwen2, a window in the upper layer": ("qwen2", UPPER),
    "qwen2, windows in all layers": ("qwen2", UPPER | {"max_window_layers": 0}),
    "qwen2, windows in no layer": ("qwen2", UPPER | {"max_window_layers": 2}),
    "qwen2, a window that is not used": ("qwen2", {"use_sliding_window": False, "sliding_window": 9}),
    "qwen2, layers of two kinds": (
        "qwen2",
        UPPER | {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "qwen3, its own head dim": ("qwen3", {}),
    "qwen3, heads narrower than hidden / heads": ("qwen3", {"head_dim": 6}),
    "qwen3, untied, biases": ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": False}),
    "qwen3, as many key-value heads as heads": ("qwen3", {"head_dim": 16, "num_key_value_heads": 6}),
    "qwen3, a window in the upper layer": ("qwen3", UPPER | {"head_dim": 16}),
}

SCALINGS: dict[str, dict[str, Any]] = {
    "another base": {"rope_theta": 1e6, "rope_type": "default"},
    "linear": {**ROPE, "rope_type": "linear", "factor": 4.0},
    "llama3": {
        **ROPE,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == torch.float32
    assert theirs.abs().max() > 1, "the oracle's logits are too small to tell anything"
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("family", "overrides"), SHAPES.values(), ids=SHAPES.keys())
def test_logits_equal_those_of_transformers(tmp_path: Path, family: str, overrides: dict[str, Any]) -> None:
    theirs = make_model(tmp_path, family, **overrides)
    loaded = load_model(tmp_path)
    _close(run(loaded.model, TOKENS), oracle(theirs, TOKENS))
    assert loaded.num_parameters == sum(p.numel() for p in theirs.parameters())
    assert loaded.config.family == family


def test_windows_are_those_that_the_configuration_names(tmp_path: Path) -> None:
    expected = {
        "mistral with a window shorter than the prompt": (7, 7),
        "mistral whose window hides nothing": (),
        "qwen2, a window in the upper layer": (None, 9),
        "qwen2, a window that is not used": (),
        "qwen2, layers of two kinds": (9, None, 9),
    }
    for name, windows in expected.items():
        family, overrides = SHAPES[name]
        make_model(tmp_path / name, family, **overrides)
        assert load_model(tmp_path / name).config.windows == windows, name


@pytest.mark.parametrize("family", NEW_FAMILIES)
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())
def test_rope_scalings_equal_those_of_transformers(tmp_path: Path, family: str, scaling: dict[str, Any]) -> None:
    theirs = make_model(tmp_path, family, head_dim=16, rope_parameters=dict(scaling))
    expected = oracle(theirs, TOKENS)
    _close(run(load_model(tmp_path).model, TOKENS), expected)
    # The same as releases before transformers 5 spell it.
    beside = {name: value for name, value in scaling.items() if name not in ("rope_theta", "rope_type")}
    old = {"type": scaling["rope_type"], **beside} if beside else None
    edit_config(tmp_path, rope_parameters=None, rope_theta=scaling["rope_theta"], rope_scaling=old)
    _close(run(load_model(tmp_path).model, TOKENS), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_dynamic_rope_equals_a_fresh_run_of_the_whole(tmp_path: Path, family: str) -> None:
    rope = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 3.0}
    theirs = make_model(tmp_path, family, head_dim=16, max_position_embeddings=32, rope_parameters=rope)
    _close(run(load_model(tmp_path).model, TOKENS), oracle(theirs, TOKENS))


def test_the_length_of_the_training_may_stand_beside_the_scaling_and_a_null_factor_is_the_ratio(tmp_path: Path) -> None:
    theirs = make_model(tmp_path, "qwen2", rope_parameters=dict(SCALINGS["yarn"]))
    edit_config(
        tmp_path,
        rope_parameters={**ROPE, "rope_type": "yarn", "factor": None, "original_max_position_embeddings": 50},
        original_max_position_embeddings=16,
    )
    _close(run(load_model(tmp_path).model, TOKENS), oracle(theirs, TOKENS))


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_what_the_configuration_leaves_out_is_what_transformers_takes(tmp_path: Path, family: str) -> None:
    theirs = make_model(tmp_path, family, **({"sliding_window": 5, "use_sliding_window": True}))
    gone = ("architectures", "layer_types", "max_window_layers", "rope_parameters", "hidden_act", "head_dim")
    edit_config(tmp_path, **dict.fromkeys(gone))
    bare = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    config = load_model(tmp_path).config
    assert config.windows == ((5, 5) if family == "mistral" else ())
    _close(run(load_model(tmp_path).model, TOKENS), oracle(bare, TOKENS))
    # Without a length and a window too: they are long.
    edit_config(tmp_path, max_position_embeddings=None, sliding_window=None)
    bare = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    config = load_model(tmp_path).config
    assert config.context_length == bare.config.max_position_embeddings
    assert config.windows == ((4096, 4096) if family == "mistral" else ())
    assert theirs.config.model_type == config.family


@pytest.mark.parametrize("family", NEW_FAMILIES)
def test_chunks_do_not_change_the_logits(tmp_path: Path, family: str) -> None:
    theirs = make_model(tmp_path, family, **UPPER)
    _close(run(load_model(tmp_path).model, TOKENS, chunks=[1] * 10 + [17, 23]), oracle(theirs, TOKENS))


@pytest.mark.parametrize(
    ("family", "dtype"), [("mistral", torch.float16), ("qwen2", torch.bfloat16), ("qwen3", torch.bfloat16)]
)
def test_sharded_checkpoints_in_half_precision_are_computed_in_float32(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    theirs = make_model(tmp_path, family, tie_word_embeddings=False)
    (tmp_path / "model.safetensors").unlink()
    theirs.to(dtype).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    _close(run(load_model(tmp_path).model, TOKENS), oracle(rounded, TOKENS))


GGUF_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen2, untied": ("qwen2", {"tie_word_embeddings": False}),
    "qwen3": ("qwen3", {}),
    "qwen3, untied, biases, other head dim": (
        "qwen3",
        {"tie_word_embeddings": False, "attention_bias": True, "head_dim": 16},
    ),
    "mistral, which is called llama there": ("mistral", {"sliding_window": None, "tie_word_embeddings": False}),
}


@pytest.mark.parametrize(("family", "overrides"), GGUF_SHAPES.values(), ids=GGUF_SHAPES.keys())
def test_the_same_model_as_gguf_gives_the_same_logits(tmp_path: Path, family: str, overrides: dict[str, Any]) -> None:
    theirs = make_model(tmp_path / "hf", family, **overrides)
    loaded = load_model(write_gguf(tmp_path / "m.gguf", theirs))
    assert loaded.config.family == {"mistral": "llama"}.get(family, family)
    assert torch.equal(run(loaded.model, TOKENS), run(load_model(tmp_path / "hf").model, TOKENS))
    _close(run(loaded.model, TOKENS), oracle(theirs, TOKENS))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_quantised_gguf_files_give_the_logits_that_transformers_reads_out_of_them(tmp_path: Path, family: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    theirs = make_model(tmp_path / "hf", family, **sizes, vocab_size=train_bpe().get_vocab_size())
    kinds = [gguf.GGMLQuantizationType[k] for k in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")]
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    quantize = {f"blk.{i}.{name}.weight": kind for i in range(2) for name, kind in zip(names, kinds, strict=True)}
    path = write_gguf(tmp_path / "m.gguf", theirs, quantize=quantize)
    decoded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).eval()
    assert decoded.config.model_type == family
    tokens = [token % decoded.config.vocab_size for token in TOKENS]
    _close(run(load_model(path).model, tokens), oracle(decoded, tokens))


def test_a_window_in_a_gguf_file_holds_for_all_layers(tmp_path: Path) -> None:
    theirs = make_model(tmp_path / "hf", "mistral", sliding_window=7)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(7)

    loaded = load_model(write_gguf(tmp_path / "m.gguf", theirs, extra=extra))
    assert loaded.config.windows == (7, 7)
    _close(run(loaded.model, TOKENS), oracle(theirs, TOKENS))


def test_rope_scaling_of_qwen_gguf_files_is_read_from_their_metadata(tmp_path: Path) -> None:
    theirs = make_model(tmp_path / "hf", "qwen2", rope_parameters=dict(SCALINGS["yarn"]))

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)

    _close(run(load_model(write_gguf(tmp_path / "m.gguf", theirs, extra=extra)).model, TOKENS), oracle(theirs, TOKENS))
