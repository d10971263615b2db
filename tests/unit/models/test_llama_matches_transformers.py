from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from checkpoints import edit_config, make_llama, oracle, run, train_bpe, write_gguf
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from octavo_worker.models.registry import load_model

TOKENS = torch.randint(0, 330, (50,), generator=torch.Generator().manual_seed(1)).tolist()
ROPE = {"rope_theta": 10000.0}

SHAPES: dict[str, dict[str, Any]] = {
    "grouped heads, tied head": {},
    "one key-value head": {"num_key_value_heads": 1},
    "as many key-value heads as heads": {"num_key_value_heads": 6},
    "untied head": {"tie_word_embeddings": False},
    "attention biases": {"attention_bias": True},
    "feed-forward biases": {"mlp_bias": True},
    "all biases, untied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "wider heads than hidden / heads": {"head_dim": 16},
    "narrower heads": {"head_dim": 4},
    "one layer": {"num_hidden_layers": 1},
    "large base": {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    "linear rope": {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 4.0}},
    "llama3 rope": {
        "rope_parameters": {
            **ROPE,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "yarn rope": {
        "rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    },
    "yarn rope with options": {
        "rope_parameters": {
            **ROPE,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.2,
            "truncate": False,
        }
    },
    "yarn rope with an attention factor": {
        "rope_parameters": {
            **ROPE,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "attention_factor": 0.8,
        }
    },
}


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == torch.float32
    assert theirs.abs().max() > 1, "the oracle's logits are too small to tell anything"
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("overrides", SHAPES.values(), ids=SHAPES.keys())
def test_logits_of_a_random_checkpoint_equal_those_of_transformers(tmp_path: Path, overrides: dict[str, Any]) -> None:
    theirs = make_llama(tmp_path, **overrides)
    loaded = load_model(tmp_path)
    _close(run(loaded.model, TOKENS), oracle(theirs, TOKENS))
    assert loaded.num_parameters == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("chunks", [[1] * 50, [3] * 16 + [2], [17, 17, 16]], ids=["ones", "threes", "seventeens"])
def test_chunks_do_not_change_the_logits(tmp_path: Path, chunks: list[int]) -> None:
    theirs = make_llama(tmp_path)
    _close(run(load_model(tmp_path).model, TOKENS, chunks=chunks), oracle(theirs, TOKENS))


@pytest.mark.parametrize("num_prompt", [10, 32, 40])
def test_dynamic_rope_equals_a_fresh_run_of_the_prompt_and_then_of_each_later_token(
    tmp_path: Path, num_prompt: int
) -> None:
    rope = {**ROPE, "rope_type": "dynamic", "factor": 3.0}
    theirs = make_llama(tmp_path, max_position_embeddings=32, rope_parameters=rope)
    loaded = load_model(tmp_path)
    assert loaded.config.needs_prompt_lengths
    chunks = [num_prompt] + [1] * (50 - num_prompt)
    ours = run(loaded.model, TOKENS, chunks=chunks)
    _close(ours, _cached_run(theirs, chunks))


def _cached_run(model: LlamaForCausalLM, chunks: list[int]) -> torch.Tensor:
    """transformers with its own cache, on a fresh module, fed like a generation."""
    parts, cache, position = [], None, 0
    with torch.inference_mode():
        for size in chunks:
            out = model(torch.tensor([TOKENS[position : position + size]]), cache=cache, use_cache=True)
            cache, position = out.cache, position + size
            parts.append(out.logits[0])
    return torch.cat(parts)


def test_tokens_of_several_sequences_in_one_batch_do_not_mix(tmp_path: Path) -> None:
    theirs = make_llama(tmp_path)
    model = load_model(tmp_path).model
    first, second = TOKENS[:20], TOKENS[20:33]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(33, 33, dtype=torch.bool)
        mask[:20, :20], mask[20:, 20:] = True, True
        heads = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask.tril(), enable_gqa=True)
        return out[0].transpose(0, 1)

    positions = torch.cat((torch.arange(20), torch.arange(13)))
    logits = model.logits(model.forward(torch.tensor(first + second), positions, attend))
    _close(logits, torch.cat((oracle(theirs, first), oracle(theirs, second))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_checkpoints_in_other_float_types_are_computed_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs = make_llama(tmp_path)
    theirs.to(dtype).save_pretrained(tmp_path)
    rounded = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    _close(run(load_model(tmp_path).model, TOKENS), oracle(rounded, TOKENS))


def test_sharded_checkpoints_are_read_through_their_index(tmp_path: Path) -> None:
    theirs = make_llama(tmp_path, tie_word_embeddings=False)
    whole = load_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    sharded = load_model(tmp_path)
    assert torch.equal(run(sharded.model, TOKENS), run(whole.model, TOKENS))
    assert sharded.digest != whole.digest


def test_the_configuration_of_older_releases_of_transformers_is_understood(tmp_path: Path) -> None:
    rope = {"rope_theta": 5000.0, "rope_type": "linear", "factor": 2.0}
    theirs = make_llama(tmp_path, rope_parameters=rope)
    edit_config(tmp_path, rope_parameters=None, rope_theta=5000.0, rope_scaling={"type": "linear", "factor": 2.0})
    _close(run(load_model(tmp_path).model, TOKENS), oracle(theirs, TOKENS))


def test_a_tied_checkpoint_may_store_its_head_and_old_buffers_as_well(tmp_path: Path) -> None:
    theirs = make_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = torch.zeros(330, 48)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, file)
    _close(run(load_model(tmp_path).model, TOKENS), oracle(theirs, TOKENS))


@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": False, "attention_bias": True}, {"head_dim": 16, "num_key_value_heads": 3}],
    ids=["plain", "untied with biases", "wide heads"],
)
def test_the_same_model_as_gguf_gives_the_same_logits(tmp_path: Path, overrides: dict[str, Any]) -> None:
    theirs = make_llama(tmp_path / "hf", **overrides)
    loaded = load_model(write_gguf(tmp_path / "tiny.gguf", theirs))
    assert torch.equal(run(loaded.model, TOKENS), run(load_model(tmp_path / "hf").model, TOKENS))
    _close(run(loaded.model, TOKENS), oracle(theirs, TOKENS))
    assert (loaded.name, loaded.source, loaded.config.eos_ids, loaded.config.bos_id) == ("tiny", "gguf", (0,), 1)


def test_rope_scaling_of_gguf_files_is_read_from_their_metadata(tmp_path: Path) -> None:
    rope = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    theirs = make_llama(tmp_path / "hf", rope_parameters=rope)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(16)

    _close(run(load_model(write_gguf(tmp_path / "m.gguf", theirs, extra=extra)).model, TOKENS), oracle(theirs, TOKENS))


def test_llama3_scaling_of_gguf_files_is_their_tensor_of_divisors(tmp_path: Path) -> None:
    rope: dict[str, Any] = SHAPES["llama3 rope"]
    theirs = make_llama(tmp_path / "hf", head_dim=8, **rope)
    plain = 1.0 / (10000.0 ** (np.arange(0, 8, 2, dtype=np.float32) / 8))
    divisors = (plain / theirs.model.rotary_emb.inv_freq.numpy()).astype(np.float32)

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", divisors)

    _close(run(load_model(write_gguf(tmp_path / "m.gguf", theirs, extra=extra)).model, TOKENS), oracle(theirs, TOKENS))


def test_quantised_matrices_give_the_logits_of_their_decoded_values(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    theirs = make_llama(tmp_path / "hf", **sizes, vocab_size=train_bpe().get_vocab_size())
    kinds = [gguf.GGMLQuantizationType[k] for k in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")]
    names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    quantize = {f"blk.{i}.{name}.weight": kind for i in range(2) for name, kind in zip(names, kinds, strict=True)}
    path = write_gguf(tmp_path / "m.gguf", theirs, quantize=quantize)
    decoded = LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).eval()
    tokens = [token % decoded.config.vocab_size for token in TOKENS]
    _close(run(load_model(path).model, tokens), oracle(decoded, tokens))


def test_a_directory_with_one_gguf_file_stands_for_it(tmp_path: Path) -> None:
    theirs = make_llama(tmp_path / "hf")
    path = write_gguf(tmp_path / "only.gguf", theirs)
    assert load_model(tmp_path).digest == load_model(path).digest
