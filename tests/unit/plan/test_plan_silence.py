"""What a config.json leaves out means to the planner and to the worker what it means to transformers."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from octavo_common.plan.config import config_shape
from octavo_worker.models.config import parse_config

SAID = {
    "num_hidden_layers": 30,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


@pytest.mark.parametrize("slides", [{}, {"use_sliding_window": True}, {"sliding_window": None}])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_silent_file_means_the_same_to_all(family, slides) -> None:
    given = {**SAID, **slides, "model_type": family, "architectures": [CONFIGS[family].__name__[:-6] + "ForCausalLM"]}
    theirs = CONFIGS[family](**SAID, **slides)
    shape = config_shape(given, name="x", where="config.json")
    assert shape.context_length == theirs.max_position_embeddings
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert shape.head_dim == head_dim
    kinds = getattr(theirs, "layer_types", None)
    window = getattr(theirs, "sliding_window", None)
    if kinds is None:
        windows = (window,) * 30
    else:
        windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    ours = parse_config(given, "config.json")
    assert (ours.head_dim, ours.context_length) == (head_dim, theirs.max_position_embeddings)
    assert tuple(ours.window(layer) for layer in range(30)) == windows
    num = shape.num_window_layers if shape.num_window_layers is not None else 30
    assert (shape.sliding_window, num if shape.sliding_window else 0) == (
        next((w for w in windows if w), None),
        sum(w is not None for w in windows),
    )
