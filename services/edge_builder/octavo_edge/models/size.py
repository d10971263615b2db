"""How large a checkpoint's model is, by its configuration alone: no weight is read, and torch is not needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader

__all__ = ["ModelSize", "read_size"]

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The dimensions of a decoder that decide how many numbers it has."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tied_embeddings: bool

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """Output and input channels of each matrix of a layer."""
        wide, narrow = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = ((wide, self.hidden_size), *[(narrow, self.hidden_size)] * 2, (self.hidden_size, wide))
        inner = self.intermediate_size
        return (*attention, *[(inner, self.hidden_size)] * 2, (self.hidden_size, inner))

    @property
    def num_block_params(self) -> int:
        """Numbers in the matrices of all layers."""
        return self.num_layers * sum(outputs * inputs for outputs, inputs in self.layer_matrices)

    @property
    def num_table_params(self) -> int:
        """Numbers in the embedding table, and in the head."""
        return self.vocab_size * self.hidden_size

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in float32, of all layers."""
        return 8 * self.num_layers * self.num_kv_heads * self.head_dim


def read_size(path: Path) -> ModelSize | None:
    """The size of a Hugging Face directory or a GGUF file that ``check_source`` took; None if a dimension is absent."""
    try:
        return _of_config(json.loads((path / "config.json").read_text())) if path.is_dir() else _of_gguf(path)
    except (KeyError, TypeError, ValueError):
        return None  # it is told where the model is loaded


def _of_config(config: dict[str, Any]) -> ModelSize:
    num_heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    return ModelSize(
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden // num_heads),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _of_gguf(path: Path) -> ModelSize:
    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if len(field.types) == 1}
    shapes = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    family = fields["general.architecture"]
    num_heads = int(fields[f"{family}.attention.head_count"])
    hidden, vocab_size = shapes[_EMBEDDING]
    return ModelSize(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=int(fields[f"{family}.feed_forward_length"]),
        num_layers=int(fields[f"{family}.block_count"]),
        num_heads=num_heads,
        num_kv_heads=int(fields.get(f"{family}.attention.head_count_kv") or num_heads),
        head_dim=int(fields.get(f"{family}.attention.key_length") or hidden // num_heads),
        tied_embeddings=_HEAD not in shapes,
    )
