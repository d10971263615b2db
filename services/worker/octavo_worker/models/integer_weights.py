"""A decoder's weights as integers in groups of 32, for the modes w8a8 and w4a8. Knows no forward pass.

`w4a8` takes the matrices that a GGUF file stores as Q4_0, Q4_1 or Q8_0 exactly as they are; whatever else there is
becomes Q8_0, and so do q, k and v (or gate and up), which are one product, where they are stored in different types.
`w8a8` makes all of them Q8_0. Norms and biases stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_worker.kernels.integer import GROUP, Q8_0, Format
from octavo_worker.kernels.vector import LANES
from octavo_worker.models.base import InvalidModel, ModelConfig
from octavo_worker.models.checkpoint import Checkpoint, read_rows, require
from octavo_worker.models.decoder import IGNORED, tensors
from octavo_worker.models.layers import interleave
from octavo_worker.models.packed import BY_GGUF_NAME, Groups, Matrix, pack, quantize, unpack_blocks

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeights:
    """A matrix, and its bias padded to the matrix's padded outputs."""

    matrix: Matrix
    bias: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; q and k with the two dims of a rotated pair side by side."""

    attention_norm: Floats
    qkv: LinearWeights
    q_norm: Floats | None
    k_norm: Floats | None
    out: LinearWeights
    mlp_norm: Floats
    gate_up: LinearWeights
    down: LinearWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWeights:
    """All of a decoder's weights."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    norm: Floats
    head: Matrix

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices."""
        linears = [
            linear.matrix.data.nbytes
            for layer in self.layers
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        head = 0 if self.head is self.embedding else self.head.data.nbytes
        return sum(linears) + self.embedding.data.nbytes + head


def reasons_against(config: ModelConfig) -> list[str]:
    """Why a model cannot be computed this way; empty when it can."""
    widths = {
        "hidden size": config.hidden,
        "width of all heads": config.num_heads * config.head_dim,
        "feed-forward size": config.intermediate,
    }
    reasons = [f"the {name} {width} is not a multiple of {GROUP}" for name, width in widths.items() if width % GROUP]
    if config.head_dim % LANES:
        reasons.append(f"the head dim {config.head_dim} is not a multiple of {LANES}")
    return reasons


def read_weights(config: ModelConfig, checkpoint: Checkpoint, *, as_stored: bool) -> IntegerWeights:
    """Read a checkpoint; ``as_stored`` is w4a8. Raises InvalidModel when it does not fit the configuration."""
    reader = _Reader(config, checkpoint, as_stored=as_stored)
    embedding = reader.matrix(["model.embed_tokens"])
    head = embedding if config.tie_embeddings else reader.matrix(["lm_head"])
    layers = tuple(reader.layer(index) for index in range(config.num_layers))
    return IntegerWeights(embedding=embedding, layers=layers, norm=reader.vector("model.norm"), head=head)


class _Reader:
    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, *, as_stored: bool) -> None:
        ignored = (*IGNORED, "lm_head.weight") if config.tie_embeddings else IGNORED
        require(checkpoint, tensors(config), ignored=ignored)
        self._config = config
        self._checkpoint = checkpoint
        self._as_stored = as_stored

    def layer(self, index: int) -> LayerWeights:
        """One layer."""
        config, prefix = self._config, f"model.layers.{index}."
        norms = [self._head_norm(f"{prefix}self_attn.{n}_norm") if config.head_norms else None for n in "qk"]
        return LayerWeights(
            attention_norm=self.vector(f"{prefix}input_layernorm"),
            qkv=self._linear([f"{prefix}self_attn.{n}_proj" for n in "qkv"], config.qkv_bias, is_qkv=True),
            q_norm=norms[0],
            k_norm=norms[1],
            out=self._linear([f"{prefix}self_attn.o_proj"], config.out_bias),
            mlp_norm=self.vector(f"{prefix}post_attention_layernorm"),
            gate_up=self._linear([f"{prefix}mlp.{n}_proj" for n in ("gate", "up")], config.mlp_bias),
            down=self._linear([f"{prefix}mlp.down_proj"], config.mlp_bias),
        )

    def vector(self, name: str, kind: str = "weight") -> Floats:
        """A tensor of one dimension."""
        name = f"{name}.{kind}"
        return read_rows(self._checkpoint, [name], self._checkpoint.shapes[name]).numpy()

    def matrix(self, names: list[str], *, is_qkv: bool = False) -> Matrix:
        """Some matrices one below another."""
        parts = [self._groups(f"{name}.weight") for name in names]
        form = parts[0].form
        if any(part.form != form for part in parts):
            form, parts = Q8_0, [part if part.form == Q8_0 else quantize(part.values()) for part in parts]
        minima = [part.minima_OG for part in parts if part.minima_OG is not None]
        groups = Groups(
            form=form,
            ints_OI=np.concatenate([part.ints_OI for part in parts]),
            deltas_OG=np.concatenate([part.deltas_OG for part in parts]),
            minima_OG=np.concatenate(minima) if minima else None,
        )
        return pack(groups.take(self._order(len(groups.ints_OI))) if is_qkv else groups)

    def _linear(self, names: list[str], has_bias: bool, *, is_qkv: bool = False) -> LinearWeights:
        matrix = self.matrix(names, is_qkv=is_qkv)
        if not has_bias:
            return LinearWeights(matrix=matrix)
        values = np.concatenate([self.vector(name, "bias") for name in names])
        bias = np.zeros(matrix.padded_outputs, np.float32)
        bias[: len(values)] = values[self._order(len(values))] if is_qkv else values
        return LinearWeights(matrix=matrix, bias=bias)

    def _order(self, num_rows: int) -> NDArray[np.int64]:
        """Rows of q, k and v such that the two dims of each rotated pair of q and k are neighbours."""
        config = self._config
        rows = torch.arange(num_rows)
        num_rotated = (config.num_heads + config.num_kv_heads) * config.head_dim
        rotated = interleave(rows[:num_rotated], num_rotated // config.head_dim, config.head_dim, config.rope.dim)
        return torch.cat((rotated, rows[num_rotated:])).numpy()

    def _head_norm(self, name: str) -> Floats:
        weight = torch.from_numpy(self.vector(name))
        return interleave(weight, 1, self._config.head_dim, self._config.rope.dim).numpy()

    def _groups(self, name: str) -> Groups:
        stored = self._checkpoint.read_blocks(name)
        form: Format | None = None if stored is None else BY_GGUF_NAME.get(stored.kind)
        if stored is not None and form is not None and (self._as_stored or form == Q8_0):
            groups = unpack_blocks(form, stored.blocks_OGB)
            scales = [groups.deltas_OG] if groups.minima_OG is None else [groups.deltas_OG, groups.minima_OG]
            if not all(np.isfinite(part).all() for part in scales):
                raise InvalidModel(f"{self._checkpoint.where}: the tensor {name} has values that are not finite")
            return groups
        return quantize(read_rows(self._checkpoint, [name], self._checkpoint.shapes[name]).numpy())
