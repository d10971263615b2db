"""The interface of a decoder's graphs: names, shapes and types of what goes in and comes out.

One model has one graph for each number of new tokens (AR) that a call takes. All of them serve the same context
(CL columns of attention), so a graph's past holds P = CL - AR tokens. Knows nothing of ONNX or torch.

Shapes: V vocabulary, H hidden, N heads, K key-value heads, D size of a head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["GraphSpec", "RopeSpec", "TensorSpec", "graph_file", "read_spec", "write_spec"]

MASK_VALUE = -100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One input or output of a graph. `dtype` is numpy's name of the type."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions: angle = position * inverse_frequencies; cosines and sines are multiplied by `attention_factor`.

    Scaling of a context (linear, llama3, yarn) is already in the frequencies and in the factor.
    """

    inverse_frequencies: tuple[float, ...]  # D / 2 of them, float32 values
    attention_factor: float = 1.0
    kind: str = "default"  # the scaling's name, for reports


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """What the graphs of one model have in common."""

    context_length: int
    ars: tuple[int, ...]  # the largest first
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    rope: RopeSpec
    window: int | None = None  # of sliding attention, in tokens, the newest counted; None sees all of the context
    mask_value: float = MASK_VALUE  # what the mask holds where a token may not look

    def __post_init__(self) -> None:
        assert self.ars and list(self.ars) == sorted(set(self.ars), reverse=True), "ars descend and differ"
        assert self.ars[-1] > 0 and self.ars[0] < self.context_length, "a graph has new tokens and room for a past"
        assert len(self.rope.inverse_frequencies) * 2 == self.head_dim
        assert self.num_heads % self.num_kv_heads == 0

    def past_length(self, ar: int) -> int:
        """Tokens of past that the graph for `ar` new ones takes."""
        return self.context_length - ar

    def inputs(self, ar: int) -> tuple[TensorSpec, ...]:
        """Inputs in the graph's order."""
        past, heads, dim = self.past_length(ar), self.num_kv_heads, self.head_dim
        result = [
            TensorSpec(name="input_ids", shape=(1, ar), dtype="int64"),
            TensorSpec(name="attention_mask", shape=(1, 1, ar, self.context_length)),
            TensorSpec(name="cos", shape=(1, 1, ar, dim // 2)),
            TensorSpec(name="sin", shape=(1, 1, ar, dim // 2)),
        ]
        for layer in range(self.num_layers):
            result.append(TensorSpec(name=f"past_key_{layer}", shape=(heads, 1, dim, past)))
            result.append(TensorSpec(name=f"past_value_{layer}", shape=(heads, 1, past, dim)))
        return tuple(result)

    def outputs(self, ar: int) -> tuple[TensorSpec, ...]:
        """Outputs in the graph's order: the new tokens' logits, keys (transposed) and values."""
        heads, dim = self.num_kv_heads, self.head_dim
        result = [TensorSpec(name="logits", shape=(1, ar, self.vocab_size))]
        for layer in range(self.num_layers):
            result.append(TensorSpec(name=f"key_{layer}", shape=(heads, 1, dim, ar)))
            result.append(TensorSpec(name=f"value_{layer}", shape=(heads, 1, ar, dim)))
        return tuple(result)

    def to_json(self) -> dict[str, Any]:
        """As `spec.json` holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GraphSpec:
        """The inverse of `to_json`."""
        rope = dict(value["rope"])
        rope["inverse_frequencies"] = tuple(rope["inverse_frequencies"])
        return cls(**{**value, "ars": tuple(value["ars"]), "rope": RopeSpec(**rope)})


def graph_file(ar: int) -> str:
    """Name of the file with the graph for `ar` new tokens."""
    return f"ar{ar}.onnx"


def read_spec(folder: Path) -> GraphSpec:
    """The spec of an artifact's folder."""
    return GraphSpec.from_json(json.loads((folder / "spec.json").read_text()))


def write_spec(folder: Path, spec: GraphSpec) -> None:
    """Write `spec.json` into an artifact's folder."""
    (folder / "spec.json").write_text(json.dumps(spec.to_json(), indent=1) + "\n")
