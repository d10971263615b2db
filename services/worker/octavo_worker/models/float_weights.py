"""A layer's weights as plain float tensors, as every decoder in floats takes them. Knows no forward pass.

q, k and v are one matrix, gate and up another: one product each instead of five. The two dims of each rotated pair of q
and k lie side by side (`layers.interleave`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo_worker.models.base import ModelConfig
from octavo_worker.models.checkpoint import Checkpoint, read_rows
from octavo_worker.models.layers import interleave


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTensors:
    """A linear map."""

    weight_OI: Tensor
    bias_O: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One layer, in float32."""

    attention_norm_D: Tensor
    qkv: LinearTensors
    # Of the single heads of q and k, where the model has such norms.
    q_norm_H: Tensor | None
    k_norm_H: Tensor | None
    out: LinearTensors
    mlp_norm_D: Tensor
    gate_up: LinearTensors
    down: LinearTensors


def read_layer(config: ModelConfig, checkpoint: Checkpoint, index: int) -> LayerTensors:
    """Read one layer. Raises InvalidModel where values are not finite."""
    prefix = f"model.layers.{index}."
    hidden, wide = config.hidden, config.intermediate
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def norm(name: str) -> Tensor:
        return read_rows(checkpoint, [f"{prefix}{name}.weight"], (hidden,))

    def head_norm(name: str) -> Tensor | None:
        if not config.head_norms:
            return None
        weight_H = read_rows(checkpoint, [f"{prefix}self_attn.{name}_norm.weight"], (config.head_dim,))
        # The weight's dims follow those of the heads.
        return interleave(weight_H, 1, config.head_dim, config.rope.dim)

    def linear(names: list[str], rows: int, columns: int, bias: bool, *, num_rotated: int = 0) -> LinearTensors:
        weight_OI = read_rows(checkpoint, [f"{prefix}{name}.weight" for name in names], (rows, columns))
        bias_O = read_rows(checkpoint, [f"{prefix}{name}.bias" for name in names], (rows,)) if bias else None
        for part in (weight_OI, bias_O):
            if part is not None and num_rotated:
                _interleave_(config, part, num_rotated)
        return LinearTensors(weight_OI=weight_OI, bias_O=bias_O)

    return LayerTensors(
        attention_norm_D=norm("input_layernorm"),
        qkv=linear(
            [f"self_attn.{n}_proj" for n in "qkv"],
            q + 2 * kv,
            hidden,
            config.qkv_bias,
            num_rotated=config.num_heads + config.num_kv_heads,
        ),
        q_norm_H=head_norm("q"),
        k_norm_H=head_norm("k"),
        out=linear(["self_attn.o_proj"], hidden, q, config.out_bias),
        mlp_norm_D=norm("post_attention_layernorm"),
        gate_up=linear(["mlp.gate_proj", "mlp.up_proj"], 2 * wide, hidden, config.mlp_bias),
        down=linear(["mlp.down_proj"], hidden, wide, config.mlp_bias),
    )


def _interleave_(config: ModelConfig, part: Tensor, num_rotated: int) -> None:
    """Put the two dims of each rotated pair of the first heads (q's and k's) side by side."""
    rows = part[: num_rotated * config.head_dim]
    rows.copy_(interleave(rows, num_rotated, config.head_dim, config.rope.dim))
