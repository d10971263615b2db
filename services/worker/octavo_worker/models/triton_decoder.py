"""The decoder of all families on a GPU: Triton's kernels between the matrix products of torch.

The same model as `decoder.Decoder` in fewer passes over memory: a norm and the addition to the stream before it are one
kernel, so are the two halves of a gate. The stream itself is in the model's dtype; norms, angles and sums are float32.

Legend: T tokens, S sampled rows, D hidden, X heads of q, then of k (then of v), N query heads, G key-value heads, H
head dim, P rotated pairs, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_common.errors import FailedPrecondition
from octavo_worker.kernels.triton.head_norm import head_norm
from octavo_worker.kernels.triton.rms_norm import MAX_WIDTH, rms_norm
from octavo_worker.kernels.triton.rotary import rotary
from octavo_worker.kernels.triton.silu_mul import silu_mul
from octavo_worker.models.base import Attend, ModelConfig
from octavo_worker.models.checkpoint import Checkpoint, read_rows, require
from octavo_worker.models.decoder import IGNORED, num_parameters, tensors
from octavo_worker.models.float_weights import LayerTensors, LinearTensors, read_layer
from octavo_worker.models.layers import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    weight_OI: Tensor
    bias_O: Tensor | None

    def __call__(self, x_TI: Tensor) -> Tensor:
        return F.linear(x_TI, self.weight_OI, self.bias_O)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm_D: Tensor
    qkv: _Linear
    head_norm_XH: Tensor | None
    out: _Linear
    mlp_norm_D: Tensor
    gate_up: _Linear
    down: _Linear


class TritonDecoder:
    """A model whose weights are on a GPU."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, device: torch.device) -> None:
        """Read all weights, a layer at a time, in the dtype of the configuration.

        Raises InvalidModel when they do not fit the configuration, FailedPrecondition when no kernel fits the model.
        """
        if config.hidden > MAX_WIDTH:
            raise FailedPrecondition(f"a hidden size of {config.hidden} is above {MAX_WIDTH}, the most on a GPU")
        ignored = (*IGNORED, "lm_head.weight") if config.tie_embeddings else IGNORED
        require(checkpoint, tensors(config), ignored=ignored)
        self._config = config
        self._device = device
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._rope = Rope(config.rope, device)
        matrix = (config.vocab_size, config.hidden)
        self._embedding_VD = self._put(read_rows(checkpoint, ["model.embed_tokens.weight"], matrix))
        self._layers = [self._make_layer(read_layer(config, checkpoint, i)) for i in range(config.num_layers)]
        self._norm_D = read_rows(checkpoint, ["model.norm.weight"], (config.hidden,)).to(device)
        self._head_VD = self._embedding_VD
        if not config.tie_embeddings:
            self._head_VD = self._put(read_rows(checkpoint, ["lm_head.weight"], matrix))

    @property
    def config(self) -> ModelConfig:
        """The numbers that shape it."""
        return self._config

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights, but for norms."""
        return self._dtype.itemsize * num_parameters(self._config)

    def forward(
        self, tokens_T: Tensor, positions_T: Tensor, attend: Attend, *, prompt_lengths_T: Tensor | None = None
    ) -> Tensor:
        """Hidden states ``[T, D]`` after the final norm."""
        config, eps = self._config, self._config.rms_eps
        num_tokens, head_dim = tokens_T.shape[0], config.head_dim
        num_q, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        table_TP2 = torch.view_as_real(self._rope.table(positions_T, prompt_lengths_T)).squeeze(1)
        stream_TD = F.embedding(tokens_T, self._embedding_VD)
        x_TD = rms_norm(stream_TD, self._layers[0].attention_norm_D, eps)
        # What follows a layer's last product; the final norm follows the last layer's.
        next_norms = [*(layer.attention_norm_D for layer in self._layers[1:]), self._norm_D]
        for index, (layer, next_norm_D) in enumerate(zip(self._layers, next_norms, strict=True)):
            heads_TXH = layer.qkv(x_TD).view(num_tokens, -1, head_dim)
            if layer.head_norm_XH is not None:
                head_norm(heads_TXH[:, :num_rotated], layer.head_norm_XH, eps)
            rotary(heads_TXH[:, :num_rotated], table_TP2)
            out_TNH = attend(index, heads_TXH[:, :num_q], heads_TXH[:, num_q:num_rotated], heads_TXH[:, num_rotated:])
            out_TD = layer.out(out_TNH.reshape(num_tokens, num_q * head_dim))
            x_TD = rms_norm(out_TD, layer.mlp_norm_D, eps, stream_TD)
            out_TD = layer.down(silu_mul(layer.gate_up(x_TD)))
            x_TD = rms_norm(out_TD, next_norm_D, eps, stream_TD)
        return x_TD

    def logits(self, hidden_SD: Tensor) -> Tensor:
        """Float32 logits ``[S, V]``."""
        return F.linear(hidden_SD, self._head_VD).float()

    def _put(self, weight: Tensor) -> Tensor:
        # Rounded here: half the bytes go over the bus.
        return weight.to(self._dtype).to(self._device)

    def _make_layer(self, read: LayerTensors) -> _Layer:
        def linear(part: LinearTensors) -> _Linear:
            bias_O = None if part.bias_O is None else self._put(part.bias_O)
            return _Linear(weight_OI=self._put(part.weight_OI), bias_O=bias_O)

        head_norm_XH = None
        if read.q_norm_H is not None and read.k_norm_H is not None:
            counts = (self._config.num_heads, self._config.num_kv_heads)
            weights = (read.q_norm_H, read.k_norm_H)
            rows = [weight_H.expand(count, -1) for weight_H, count in zip(weights, counts, strict=True)]
            head_norm_XH = torch.cat(rows).to(self._device)
        return _Layer(
            attention_norm_D=read.attention_norm_D.to(self._device),
            qkv=linear(read.qkv),
            head_norm_XH=head_norm_XH,
            out=linear(read.out),
            mlp_norm_D=read.mlp_norm_D.to(self._device),
            gate_up=linear(read.gate_up),
            down=linear(read.down),
        )
