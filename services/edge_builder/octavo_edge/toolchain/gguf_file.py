"""A decoder as a GGUF file: its parameters under llama.cpp's names and in its order of rows, and what describes it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.models.config import AdaptedConfig
from octavo_edge.quant.reading import Parameter, floats
from octavo_edge.toolchain.gguf_blocks import stored

__all__ = ["GgufModel", "reasons_against_file"]

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TABLE, _HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A parameter under its name in the file, and the order of its rows there."""

    parameter: Parameter
    rows: Any | None = None


class GgufModel:
    """What goes into the file. `table` is how the embedding is stored: q8_0 or f16."""

    def __init__(self, config: AdaptedConfig, parameters: Mapping[str, Parameter], *, table: str) -> None:
        self._config, self._table = config, table
        self._tensors = dict(self._named(parameters))
        self.rounded: set[str] = set()

    def _named(self, parameters: Mapping[str, Parameter]) -> list[tuple[str, _Tensor]]:
        """Tensors by their names in the file. A tied model's table has the head's integers, and is there once."""
        config = self._config
        table, head = parameters[_TABLE], parameters[_HEAD]
        once = config.tied_embeddings and self._table == "q8_0"
        named = [("token_embd.weight", _Tensor(parameter=head if once else table))]
        if not once:
            named.append(("output.weight", _Tensor(parameter=head)))
        named.append(("output_norm.weight", _Tensor(parameter=parameters["norm.weight"])))
        for name, parameter in parameters.items():
            if not name.startswith("layers."):
                continue
            _, layer, rest = name.split(".", 2)
            module, kind = rest.rsplit(".", 1)
            rows = None
            if _ARCHITECTURES[config.family] == "llama" and module in ("self_attn.q_proj", "self_attn.k_proj"):
                num_heads = config.num_heads if module.endswith("q_proj") else config.num_kv_heads
                rows = _paired_rows(num_heads, config.head_dim)
            named.append((f"blk.{layer}.{_LAYER_NAMES[module]}.{kind}", _Tensor(parameter=parameter, rows=rows)))
        return named

    def write(self, path: Path, tokenizer: Mapping[str, Any]) -> None:
        """The whole file."""
        writer = gguf.GGUFWriter(str(path), _ARCHITECTURES[self._config.family])
        _describe(writer, self._config, tokenizer)
        for name, tensor in self._tensors.items():
            values = tensor.parameter if isinstance(tensor.parameter, np.ndarray) else None
            if values is not None and values.ndim == 1:
                writer.add_tensor(name, np.ascontiguousarray(values if tensor.rows is None else values[tensor.rows]))
                continue
            kind = gguf.GGMLQuantizationType[self._table.upper() if name == "token_embd.weight" else "Q8_0"]
            made = stored(tensor.parameter, tensor.rows, least=kind)
            if not made.exact:
                self.rounded.add(name)
            writer.add_tensor(name, made.data, raw_dtype=made.kind)
        factors = _rope_factors(self._config)
        if factors is not None:
            writer.add_tensor("rope_freqs.weight", factors)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        except BaseException:
            # Of a full disk: its file is closed now, not when nobody knows of the error any more.
            with suppress(OSError):
                writer.close()
            raise
        writer.close()

    def read_back(self, path: Path) -> dict[str, float]:
        """What each tensor of the file lost of what our integers stand for."""
        found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        losses: dict[str, float] = {}
        for name, tensor in self._tensors.items():
            expected = floats(tensor.parameter)
            expected = expected.reshape(len(expected), -1)
            if tensor.rows is not None:
                expected = expected[tensor.rows]
            got = dequantize(found[name].data, found[name].tensor_type).reshape(expected.shape)
            losses[name] = sqnr_db(expected, got)
        return losses


def reasons_against_file(config: AdaptedConfig) -> list[str]:
    """All reasons why llama.cpp cannot run a decoder; empty if it can."""
    why: list[str] = []
    if config.family not in _ARCHITECTURES:
        why.append(f"llama.cpp is not written for the family {config.family}")
    if config.attention != "mha":
        why.append("the projections are split by heads; build it with --attention mha")
    if config.rope.attention_factor != 1.0 or config.rope.kind not in ("default", "linear", "llama3"):
        why.append(f"rotary positions of the kind {config.rope.kind} cannot be told in the file")
    if config.rope.kind == "llama3" and _ARCHITECTURES.get(config.family) != "llama":
        why.append(f"llama.cpp has no factors of rotary frequencies for {config.family}")
    return why


def _describe(writer: gguf.GGUFWriter, config: AdaptedConfig, tokenizer: Mapping[str, Any]) -> None:
    writer.add_type("model")
    writer.add_quantization_version(2)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(_rope_base(config))
    writer.add_vocab_size(config.vocab_size)
    if config.rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(1.0 / config.rope.inverse_frequencies[0])
    for key, value in tokenizer.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)


def _rope_base(config: AdaptedConfig) -> float:
    """The base of the rotary frequencies: the second is base ** (-2 / D) of the first, whatever scales the low ones."""
    first, second = config.rope.inverse_frequencies[:2]
    base = float(first / second) ** (config.head_dim / 2)
    # The frequencies are float32, and the base of every known model is a whole number.
    return float(round(base)) if abs(base - round(base)) < 1e-4 * base else base


def _rope_factors(config: AdaptedConfig) -> Any | None:
    """What llama.cpp divides the frequencies by, [D / 2]."""
    if config.rope.kind != "llama3":
        return None
    exponents = -np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    return (_rope_base(config) ** exponents / np.array(config.rope.inverse_frequencies)).astype(np.float32)


def _paired_rows(num_heads: int, head_dim: int) -> Any:
    """Rows in llama.cpp's order: it rotates neighbours, where transformers rotates i and i + D / 2."""
    return np.arange(num_heads * head_dim).reshape(num_heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
