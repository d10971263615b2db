"""Small random checkpoints made by transformers, the same written as GGUF, and attention to run them with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}

TEXTS = [
    "An octavo is a sheet folded into eight leaves. It's 1,234 pages; they've read 56 of them, and we'll go on.",
    "def fold(sheet):\n    return [leaf for leaf in sheet if leaf % 8 == 0]  # two\t\ttabs\n\n\n",
    "Größe, naïve façade; 東京 is 1234567 people; نص عربي; 🙂👩‍👩‍👧 emoji; cafe\u0301.   three   spaces ",
]


def train_bpe(vocab_size: int = 320, specials: tuple[str, ...] = ("<|end|>", "<|start|>")) -> Tokenizer:
    """A byte-level tokenizer that knows the alphabet and some merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def make_llama(folder: Path, *, seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """Save a random Llama checkpoint with a tokenizer; returns the model as transformers runs it."""
    return make_model(folder, "llama", seed=seed, **overrides)


def make_model(folder: Path, family: str, *, seed: int = 0, **overrides: Any) -> Any:
    """Save a random checkpoint of a family with a tokenizer; returns the model as transformers runs it."""
    make_config, make = FAMILIES[family]
    values = {
        "vocab_size": 330,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 0,
        **overrides,
    }
    torch.manual_seed(seed)
    model = make(make_config(**values)).eval().to(torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases away from their neutral start, so that a forgotten one shows.
            if name.endswith(".bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    train_bpe().save(str(folder / "tokenizer.json"))
    return model


def edit_config(folder: Path, **values: Any) -> None:
    """Change entries of config.json; None removes one."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
    quantize: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Write the checkpoint as llama.cpp's converter does: its names, and for `llama` rows of q and k paired."""
    config = model.config
    architecture = {"mistral": "llama"}.get(config.model_type, config.model_type)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add_bpe(writer, train_bpe())
    if extra is not None:
        extra(writer)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if f".{part}." in name and architecture == "llama":
                paired = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2)
                values = paired.reshape(values.shape)
        stem, _, suffix = name.rpartition(".")
        target = f"{names.get_name(stem)}.{suffix}"
        kind = (quantize or {}).get(target)
        if kind is None:
            writer.add_tensor(target, np.ascontiguousarray(values))
        else:
            writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_bpe(writer: gguf.GGUFWriter, tokenizer: Tokenizer, *, pre: str = "gpt-2") -> None:
    """A byte-level tokenizer as GGUF metadata."""
    value = json.loads(tokenizer.to_str())
    vocab = sorted(value["model"]["vocab"].items(), key=lambda item: item[1])
    specials = {token["content"] for token in value["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([3 if token in specials else 1 for token, _ in vocab])
    writer.add_token_merges([" ".join(merge) for merge in value["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")


class CausalAttention:
    """Plain attention over everything that one sequence has fed so far, or what a layer's window leaves of it."""

    def __init__(self, window: Callable[[int], int | None] = lambda layer: None) -> None:
        self._window = window
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def __call__(self, layer: int, q_TNH: Tensor, k_TGH: Tensor, v_TGH: Tensor) -> Tensor:
        """Attend causally; the fed tokens come after all earlier ones."""
        past = self._keys.get(layer)
        k = k_TGH.clone() if past is None else torch.cat((past, k_TGH))
        v = v_TGH.clone() if past is None else torch.cat((self._values[layer], v_TGH))
        self._keys[layer], self._values[layer] = k, v
        num_new, num_all = q_TNH.shape[0], k.shape[0]
        position_T1 = torch.arange(num_all - num_new, num_all)[:, None]
        mask = torch.arange(num_all)[None] <= position_T1
        window = self._window(layer)
        if window is not None:
            mask &= torch.arange(num_all)[None] > position_T1 - window
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q_TNH, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)


def run(model: Any, tokens: list[int], *, chunks: list[int] | None = None) -> Tensor:
    """Logits of all tokens, fed in chunks of the given sizes."""
    attention, position, parts = CausalAttention(model.config.window), 0, []
    lengths = torch.full((len(tokens),), chunks[0] if chunks else len(tokens))
    with torch.inference_mode():
        for size in chunks or [len(tokens)]:
            piece = torch.tensor(tokens[position : position + size])
            places = torch.arange(position, position + size)
            hidden = model.forward(piece, places, attention, prompt_lengths_T=lengths[position : position + size])
            parts.append(model.logits(hidden))
            position += size
    return torch.cat(parts)


def oracle(model: Any, tokens: list[int]) -> Tensor:
    """Logits of all tokens from transformers."""
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]
