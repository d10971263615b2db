"""The decoder as devices get it: fixed shapes, 1x1 convolutions, positions and mask as inputs, the cache outside.

One class for all families; what sets them apart is in AdaptedConfig. Shapes are those of `graph/spec.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from octavo_edge.models.attention import Attention, Places, SingleHeadAttention
from octavo_edge.models.config import AdaptedConfig, read_config, write_config
from octavo_edge.models.conv import ConvLinear
from octavo_edge.models.layers import FeedForward, RMSNorm, to_channels, to_rows

__all__ = ["AdaptedDecoder", "load_decoder", "save_decoder"]

_WEIGHTS = "weights.safetensors"
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, config: AdaptedConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn: Attention | SingleHeadAttention = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x_11AH: Tensor, places: Places, past_key: Tensor, past_value: Tensor) -> tuple[Tensor, ...]:
        """Hidden states of the new tokens, their keys and values."""
        normed = to_channels(self.input_layernorm(x_11AH))
        attended = self.self_attn(normed, places, past_key, past_value)
        x_11AH = x_11AH + to_rows(attended.out_1H1A)
        x_11AH = x_11AH + to_rows(self.mlp(to_channels(self.post_attention_layernorm(x_11AH))))
        return x_11AH, attended.key_K1DA, attended.value_K1AD


class AdaptedDecoder(nn.Module):
    """From token ids to logits. Made without weights, on the meta device."""

    def __init__(self, config: AdaptedConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, device="meta")
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = ConvLinear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor]
    ) -> list[Tensor]:
        """Logits, then key and value of each layer; `past` has key and value of each layer in turn."""
        places = Places(cos.transpose(2, 3), sin.transpose(2, 3), attention_mask)
        x_11AH = self.embed_tokens(input_ids).unsqueeze(0)
        new: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x_11AH, key, value = layer(x_11AH, places, past[2 * index], past[2 * index + 1])
            new += [key, value]
        logits_1V1A = self.lm_head(to_channels(self.norm(x_11AH)))
        return [to_rows(logits_1V1A).squeeze(0), *new]

    def split_heads(self) -> None:
        """Give every head its own projections; the weights stay where they are."""
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            assert isinstance(layer.self_attn, Attention)
            layer.self_attn = SingleHeadAttention(layer.self_attn)

    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors as the weights, without a copy. A tied head is the embedding's memory."""
        tensors = dict(tensors)
        if self.config.tied_embeddings:
            tensors[_HEAD] = tensors[_EMBEDDING][:, :, None, None]
        self.load_state_dict(tensors, strict=True, assign=True)
        self.requires_grad_(False)
        self.eval()


def save_decoder(folder: Path, decoder: AdaptedDecoder) -> int:
    """Write `config.json` and `weights.safetensors` (a tied weight once); returns the weights' bytes."""
    tensors = decoder.state_dict()
    if decoder.config.tied_embeddings:
        del tensors[_HEAD]
    write_config(folder, decoder.config)
    save_file(tensors, str(folder / _WEIGHTS))
    return sum(tensor.nbytes for tensor in tensors.values())


def load_decoder(folder: Path) -> AdaptedDecoder:
    """The decoder of an AdaptedModel's folder, its heads split if its config says so. The file stays mapped."""
    config = read_config(folder)
    decoder = AdaptedDecoder(config)
    with safe_open(folder / _WEIGHTS, framework="pt") as file:
        decoder.assign({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
    if config.attention == "sha":
        decoder.split_heads()
    return decoder
