"""The decoder of all families: pre-norm layers of grouped attention and a gated feed-forward, in float32.

What sets families apart is in the ModelConfig (biases, norms of heads, angles, windows); no family is named here.
Windows are the attention's business, which is a callable of the runner.

Legend: T tokens, S sampled rows, D hidden, N query heads, G key-value heads, H head dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_worker.models.base import Attend, ModelConfig
from octavo_worker.models.checkpoint import Checkpoint, Shape, read_rows, require
from octavo_worker.models.float_weights import LayerTensors, LinearTensors, read_layer
from octavo_worker.models.head_norms import HeadNorm, NoHeadNorm, RmsHeadNorm
from octavo_worker.models.layers import Linear, RmsNorm, Rope, silu_gate

# Buffers that old checkpoints carry, and the head that a tied checkpoint may store twice.
IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: RmsNorm
    qkv: Linear
    head_norm: HeadNorm
    out: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear


class Decoder:
    """A model whose weights are in memory."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint) -> None:
        """Read all weights; raises InvalidModel when they do not fit the configuration."""
        ignored = (*IGNORED, "lm_head.weight") if config.tie_embeddings else IGNORED
        require(checkpoint, tensors(config), ignored=ignored)
        self._config = config
        self._rope = Rope(config.rope)
        self._embedding_VD = read_rows(checkpoint, ["model.embed_tokens.weight"], (config.vocab_size, config.hidden))
        self._layers = [_make_layer(config, read_layer(config, checkpoint, i)) for i in range(config.num_layers)]
        self._norm = RmsNorm(read_rows(checkpoint, ["model.norm.weight"], (config.hidden,)), config.rms_eps)
        if config.tie_embeddings:
            self._head = Linear(self._embedding_VD)
        else:
            self._head = Linear(read_rows(checkpoint, ["lm_head.weight"], (config.vocab_size, config.hidden)))

    @property
    def config(self) -> ModelConfig:
        """The numbers that shape it."""
        return self._config

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return 4 * num_parameters(self._config)

    def forward(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, *, prompt_lengths_T: Tensor | None = None
    ) -> Tensor:
        """Hidden states ``[T, D]`` after the final norm."""
        config = self._config
        num_tokens, head_dim = tokens_T.shape[0], config.head_dim
        num_q, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        table = self._rope.table(positions_T, prompt_lengths_T)
        x_TD = F.embedding(tokens_T, self._embedding_VD)
        for index, layer in enumerate(self._layers):
            heads_TXH = layer.qkv(layer.attention_norm(x_TD)).view(num_tokens, -1, head_dim)
            layer.head_norm(heads_TXH[:, :num_rotated])
            self._rope.rotate_(heads_TXH[:, :num_rotated], table)
            out_TNH = attend(index, heads_TXH[:, :num_q], heads_TXH[:, num_q:num_rotated], heads_TXH[:, num_rotated:])
            x_TD.add_(layer.out(out_TNH.reshape(num_tokens, num_q * head_dim)))
            x_TD.add_(layer.down(silu_gate(layer.gate_up(layer.mlp_norm(x_TD)))))
        return self._norm(x_TD)

    def logits(self, hidden_SD: Tensor) -> Tensor:
        """Float32 logits ``[S, V]``."""
        return self._head(hidden_SD)


def tensors(config: ModelConfig) -> dict[str, Shape]:
    """Names (Hugging Face's) and shapes of all parameters."""
    hidden, wide = config.hidden, config.intermediate
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.out_bias),
        "mlp.gate_proj": (wide, hidden, config.mlp_bias),
        "mlp.up_proj": (wide, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, wide, config.mlp_bias),
    }
    wanted: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        wanted[f"{prefix}input_layernorm.weight"] = (hidden,)
        wanted[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if config.head_norms:
            wanted[f"{prefix}self_attn.q_norm.weight"] = (config.head_dim,)
            wanted[f"{prefix}self_attn.k_norm.weight"] = (config.head_dim,)
        for name, (rows, columns, bias) in matrices.items():
            wanted[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                wanted[f"{prefix}{name}.bias"] = (rows,)
    wanted["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        wanted["lm_head.weight"] = (config.vocab_size, hidden)
    return wanted


def _make_layer(config: ModelConfig, read: LayerTensors) -> _Layer:
    def norm(weight_D: Tensor) -> RmsNorm:
        return RmsNorm(weight_D, config.rms_eps)

    def linear(part: LinearTensors) -> Linear:
        return Linear(part.weight_OI, part.bias_O)

    head_norm: HeadNorm = NoHeadNorm()
    if read.q_norm_H is not None and read.k_norm_H is not None:
        head_norm = RmsHeadNorm(
            read.q_norm_H,
            read.k_norm_H,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            eps=config.rms_eps,
        )
    return _Layer(
        attention_norm=norm(read.attention_norm_D),
        qkv=linear(read.qkv),
        head_norm=head_norm,
        out=linear(read.out),
        mlp_norm=norm(read.mlp_norm_D),
        gate_up=linear(read.gate_up),
        down=linear(read.down),
    )


def num_parameters(config: ModelConfig) -> int:
    """Number of weights."""
    return sum(int(torch.Size(shape).numel()) for shape in tensors(config).values())
