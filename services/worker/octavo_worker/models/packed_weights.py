"""A decoder's weights as its compiled kernels take them, for all modes but float32. Knows no forward pass.

What a file stores in GGUF's blocks may stay as it is; everything else becomes one form. `w4a8` and `w4a16` take Q4_0,
Q4_1 and Q8_0 as stored, `w8a8` and `bfloat16` nothing: of Q8_0, `w8a8` would lose more by activations that cannot be
mixed than it does by rounding anew. The rest becomes mixed bytes where products are of integers (in groups of 32 for q,
k, v, embedding and head, else of 64), bfloat16 where they are of floats, and so do q, k and v (or gate and up), which
are one product, where they are stored in different types. Norms and biases stay float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_worker.kernels.integer import FORMATS, GROUP, MIXED_32, MIXED_64, Format
from octavo_worker.kernels.vector import LANES
from octavo_worker.models.base import Floats, InvalidModel, ModelConfig
from octavo_worker.models.checkpoint import Checkpoint, read_rows, require
from octavo_worker.models.decoder import IGNORED, tensors
from octavo_worker.models.layers import interleave
from octavo_worker.models.packed import BY_GGUF_NAME, Groups, Matrix, quantize, unpack_blocks
from octavo_worker.models.packed_floats import Shorts, round_to_shorts


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How matrices are kept."""

    # What blocks stay as they are stored.
    as_stored: frozenset[Format]
    # Whether everything else becomes mixed bytes, else bfloat16.
    in_bytes: bool

    def convert(self, values_OI: Floats, *, wide: bool, grid_OG: Floats | None = None) -> Groups | Shorts:
        """A matrix in the form of what is not kept as stored; ``wide`` lets groups be of 64 where the width does."""
        if not self.in_bytes:
            return round_to_shorts(values_OI)
        form = MIXED_64 if wide and values_OI.shape[1] % MIXED_64.group == 0 else MIXED_32
        return quantize(values_OI, form=form, grid_OG=grid_OG)


_STORED = frozenset(FORMATS)
KEEP_W8A8 = Keeping(as_stored=frozenset(), in_bytes=True)
KEEP_W4A8 = Keeping(as_stored=_STORED, in_bytes=True)
KEEP_W4A16 = Keeping(as_stored=_STORED, in_bytes=False)
KEEP_BFLOAT16 = Keeping(as_stored=frozenset(), in_bytes=False)


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
    # What rounding took from `down`, rounded in its turn; added where its errors are heard most, see `refine`.
    down_rest: LinearWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
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
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down, layer.down_rest)
            if linear is not None
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


def read_weights(config: ModelConfig, checkpoint: Checkpoint, *, keeping: Keeping) -> PackedWeights:
    """Read a checkpoint. Raises InvalidModel when it does not fit the configuration."""
    reader = _Reader(config, checkpoint, keeping)
    embedding = reader.matrix(["model.embed_tokens"])
    head = embedding if config.tie_embeddings else reader.matrix(["lm_head"])
    layers = tuple(reader.layer(index) for index in range(config.num_layers))
    return PackedWeights(embedding=embedding, layers=layers, norm=reader.vector("model.norm"), head=head)


def refine(weights: PackedWeights, checkpoint: Checkpoint, layers: Sequence[int]) -> PackedWeights:
    """Gives the down projections of some layers 16 bits: a second matrix of what the first one's rounding took away.

    Meant for layers that make massive activations (arXiv 2402.17762): a few values of the first token that are
    thousands of times the others come out of one down projection (the "super weights" of arXiv 2411.07191), and what is
    wrong there every later token attends to. Matrices that are kept as stored stay as they are.
    """
    finer = list(weights.layers)
    for index in layers:
        if not finer[index].down.matrix.form.mixed:
            continue
        name = f"model.layers.{index}.mlp.down_proj.weight"
        form, (values, grid) = finer[index].down.matrix.form, _values(checkpoint, name, _stored(checkpoint, name))
        rest = quantize(values - quantize(values, form=form, grid_OG=grid).values(), form=form)
        finer[index] = replace(finer[index], down_rest=LinearWeights(matrix=rest.packed()))
    return replace(weights, layers=tuple(finer))


class _Reader:
    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, keeping: Keeping) -> None:
        ignored = (*IGNORED, "lm_head.weight") if config.tie_embeddings else IGNORED
        require(checkpoint, tensors(config), ignored=ignored)
        self._config = config
        self._checkpoint = checkpoint
        self._keeping = keeping

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

    def matrix(self, names: list[str], *, is_qkv: bool = False, wide: bool = False) -> Matrix:
        """Some matrices one below another; ``wide`` as of `Keeping.convert`."""
        keeping = self._keeping
        parts = [self._kept(f"{name}.weight", wide) for name in names]
        if any(part.form != parts[0].form for part in parts):
            parts = [
                keeping.convert(part.values(), wide=wide, grid_OG=part.grid_OG)
                if isinstance(part, Groups) and part.form in keeping.as_stored
                else part
                for part in parts
            ]
        whole = parts[0].above(parts[1:])
        return (whole.take(self._order(len(whole))) if is_qkv else whole).packed()

    def _linear(self, names: list[str], has_bias: bool, *, is_qkv: bool = False) -> LinearWeights:
        # What q, k and v lose is heard most; the rest is most of the products and takes larger groups.
        matrix = self.matrix(names, is_qkv=is_qkv, wide=not is_qkv)
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

    def _kept(self, name: str, wide: bool) -> Groups | Shorts:
        stored = _stored(self._checkpoint, name)
        if stored is not None and stored.form in self._keeping.as_stored:
            return stored
        values, grid = _values(self._checkpoint, name, stored)
        return self._keeping.convert(values, wide=wide, grid_OG=grid)


def _stored(checkpoint: Checkpoint, name: str) -> Groups | None:
    """A matrix as GGUF's blocks have it, where we know them."""
    stored = checkpoint.read_blocks(name)
    form: Format | None = None if stored is None else BY_GGUF_NAME.get(stored.kind)
    if stored is None or form is None:
        return None
    groups = unpack_blocks(form, stored.blocks_OGB)
    scales = [groups.deltas_OG] if groups.minima_OG is None else [groups.deltas_OG, groups.minima_OG]
    if not all(np.isfinite(part).all() for part in scales):
        raise InvalidModel(f"{checkpoint.where}: the tensor {name} has values that are not finite")
    return groups


def _values(checkpoint: Checkpoint, name: str, stored: Groups | None) -> tuple[Floats, Floats | None]:
    """A matrix in float32, and its grid if it has one."""
    if stored is not None:
        return stored.values(), stored.grid_OG
    return read_rows(checkpoint, [name], checkpoint.shapes[name]).numpy(), None
