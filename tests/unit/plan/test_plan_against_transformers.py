"""The sizes and operations of planning, against transformers' own models on torch's meta device: shapes, no memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from octavo_common.plan.devices import find_device
from octavo_common.plan.formats import WEIGHT_FORMATS, kv_format, weight_bytes, weight_format
from octavo_common.plan.memory import kv_bytes_per_sequence
from octavo_common.plan.roofline import Deployment, decode_cost, prefill_cost
from octavo_common.plan.shape import ModelShape
from octavo_common.plan.shapes import SHAPES

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}
# Of equal shapes but for their context one is enough.
NAMES = sorted(set(SHAPES) - {"llama-3.1-8b", "llama-3.1-70b"})


def theirs(shape: ModelShape):
    config, model = FAMILIES[shape.family]
    with torch.device("meta"):
        return model(
            config(
                num_hidden_layers=shape.num_layers,
                hidden_size=shape.hidden,
                num_attention_heads=shape.num_heads,
                num_key_value_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                intermediate_size=shape.intermediate,
                vocab_size=shape.vocab_size,
                tie_word_embeddings=shape.tie_embeddings,
                sliding_window=None,
                attn_implementation="eager",
            )
        ).to(torch.bfloat16)


@pytest.mark.parametrize("name", NAMES)
def test_a_known_shape_has_the_parameters_that_transformers_makes(name: str) -> None:
    model = theirs(SHAPES[name])
    assert SHAPES[name].num_parameters == model.num_parameters()
    assert weight_bytes(SHAPES[name], weight_format("bfloat16")).total == sum(
        p.numel() * p.element_size() for p in model.parameters()
    )


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_biases_are_counted(bias: str) -> None:
    config = LlamaConfig(
        num_hidden_layers=3, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        vocab_size=100, **{bias: True},
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    shape = ModelShape(
        name="x", family="llama", num_layers=3, hidden=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate=96,
        vocab_size=100, context_length=64, qkv_bias=bias == "attention_bias", output_bias=bias == "attention_bias",
        mlp_bias=bias == "mlp_bias",
    )  # fmt: skip
    assert shape.num_parameters == model.num_parameters()


@pytest.mark.parametrize("name", ["llama-3-70b", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_operations_and_cache_are_those_that_torch_counts(name: str) -> None:
    """Decode exactly; of a prompt the eager attention computes the square, of which the causal half is needed."""
    shape, model = SHAPES[name], theirs(SHAPES[name])
    plan = Deployment(
        shape=shape,
        stored=weight_format("bfloat16"),
        weights=weight_bytes(shape, weight_format("bfloat16")),
        kv=kv_format("bfloat16"),
        device=find_device("H200"),
    )
    batch, length, cache = 3, 40, DynamicCache()
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, length, dtype=torch.long), cache=cache, use_cache=True, logits_to_keep=1)
    per_pair = 4 * shape.num_layers * shape.num_heads * shape.head_dim * batch
    upper_half = per_pair * (length * length - length * (length + 1) // 2)
    cost = prefill_cost(plan, batch=batch, num_prompt_tokens=length)
    assert cost.flops == counter.get_total_flops() - upper_half
    held = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert held == batch * kv_bytes_per_sequence(shape, plan.kv, length)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, 1, dtype=torch.long), cache=cache, use_cache=True)
    cost = decode_cost(plan, batch=batch, context=length + 1)
    assert cost.flops == counter.get_total_flops()


def test_formats_of_llama_cpp_take_the_bytes_that_its_tables_say() -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    for ours, kind in (("q8_0", "Q8_0"), ("q4_0", "Q4_0"), ("q4_1", "Q4_1")):
        weights, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        assert WEIGHT_FORMATS[ours].matrix_bytes == num_bytes / weights
