"""Attention written out, over a past whose keys are stored transposed. Gives the new keys and values, never the past.

Shapes: A new tokens, P past ones, C = P + A columns, N heads, K key-value heads, G = N / K, D size of a head,
R = D / 2, H hidden size. A head that an op treats alone has size 1 in its place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from octavo_edge.models.config import AdaptedConfig
from octavo_edge.models.conv import ConvLinear
from octavo_edge.models.layers import RMSNorm, rotate

__all__ = ["Attended", "Attention", "Places", "SingleHeadAttention"]


class Places(NamedTuple):
    """Where the new tokens are and what they see; the same for all layers."""

    cos_11RA: Tensor
    sin_11RA: Tensor
    mask_11AC: Tensor  # added to scores


class Attended(NamedTuple):
    """What a layer's attention gives."""

    out_1H1A: Tensor
    key_K1DA: Tensor
    value_K1AD: Tensor


class Attention(nn.Module):
    """Grouped-query attention with one projection for all heads.

    The G heads of a group are rows of one product with the group's keys, so keys and values are never repeated.
    """

    def __init__(self, config: AdaptedConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = dim = config.head_dim
        self.q_proj = ConvLinear(config.hidden_size, self.num_heads * dim, bias=config.qkv_bias)
        self.k_proj = ConvLinear(config.hidden_size, self.num_kv_heads * dim, bias=config.qkv_bias)
        self.v_proj = ConvLinear(config.hidden_size, self.num_kv_heads * dim, bias=config.qkv_bias)
        self.o_proj = ConvLinear(self.num_heads * dim, config.hidden_size, bias=config.out_bias)
        self.q_norm = RMSNorm(dim, config.norm_eps) if config.head_norms else None
        self.k_norm = RMSNorm(dim, config.norm_eps) if config.head_norms else None

    def forward(self, x_1H1A: Tensor, places: Places, past_key_K1DP: Tensor, past_value_K1PD: Tensor) -> Attended:
        """Attend from the new tokens to the past and to each other, as the mask allows."""
        num_new = x_1H1A.shape[3]
        heads, kv_heads, dim = self.num_heads, self.num_kv_heads, self.head_dim
        group = heads // kv_heads
        query_N1DA = _placed(self.q_proj(x_1H1A).reshape(heads, 1, dim, num_new), self.q_norm, places)
        key_K1DA = _placed(self.k_proj(x_1H1A).reshape(kv_heads, 1, dim, num_new), self.k_norm, places)
        value_K1AD = self.v_proj(x_1H1A).reshape(kv_heads, 1, dim, num_new).transpose(2, 3)
        query = (query_N1DA * dim**-0.5).transpose(2, 3).reshape(kv_heads, 1, group * num_new, dim)
        scores = torch.matmul(query, torch.cat((past_key_K1DP, key_K1DA), dim=3))
        scores_KGAC = scores.reshape(kv_heads, group, num_new, -1) + places.mask_11AC
        weights = torch.softmax(scores_KGAC, dim=-1).reshape(kv_heads, 1, group * num_new, -1)
        mixed = torch.matmul(weights, torch.cat((past_value_K1PD, value_K1AD), dim=2))
        mixed_KGDA = mixed.reshape(kv_heads, group, num_new, dim).transpose(2, 3)
        out = self.o_proj(mixed_KGDA.reshape(1, heads * dim, 1, num_new))
        return Attended(out, key_K1DA, value_K1AD)


class SingleHeadAttention(nn.Module):
    """The same function with a projection, a softmax and two products for each head, which some NPUs run faster.

    Its projections are rows of the grouped one's weights, in the same memory.
    """

    def __init__(self, whole: Attention) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = whole.num_heads, whole.num_kv_heads
        self.head_dim = whole.head_dim
        self.q_proj = _split(whole.q_proj, whole.num_heads)
        self.k_proj = _split(whole.k_proj, whole.num_kv_heads)
        self.v_proj = _split(whole.v_proj, whole.num_kv_heads)
        self.o_proj, self.q_norm, self.k_norm = whole.o_proj, whole.q_norm, whole.k_norm

    def forward(self, x_1H1A: Tensor, places: Places, past_key_K1DP: Tensor, past_value_K1PD: Tensor) -> Attended:
        """As `Attention.forward`."""
        group = self.num_heads // self.num_kv_heads
        new_keys, new_values, mixed = [], [], []
        past = zip(past_key_K1DP.split(1), past_value_K1PD.split(1), strict=True)
        for index, (past_key_11DP, past_value_11PD) in enumerate(past):
            key_11DA = _placed(self.k_proj[index](x_1H1A).transpose(1, 2), self.k_norm, places)
            value_11AD = self.v_proj[index](x_1H1A).permute(0, 2, 3, 1)
            new_keys.append(key_11DA)
            new_values.append(value_11AD)
            key_11DC = torch.cat((past_key_11DP, key_11DA), dim=3)
            value_11CD = torch.cat((past_value_11PD, value_11AD), dim=2)
            for head in range(index * group, (index + 1) * group):
                query_11DA = _placed(self.q_proj[head](x_1H1A).transpose(1, 2), self.q_norm, places)
                query_11AD = (query_11DA * self.head_dim**-0.5).transpose(2, 3)
                weights_11AC = torch.softmax(torch.matmul(query_11AD, key_11DC) + places.mask_11AC, dim=-1)
                mixed.append(torch.matmul(weights_11AC, value_11CD))
        out = self.o_proj(torch.cat(mixed, dim=3).permute(0, 3, 1, 2))
        return Attended(out, torch.cat(new_keys), torch.cat(new_values))


def _placed(x_N1DA: Tensor, norm: RMSNorm | None, places: Places) -> Tensor:
    """Normalise each head where the family does, then rotate."""
    if norm is not None:
        x_N1DA = norm(x_N1DA.transpose(2, 3)).transpose(2, 3)
    return rotate(x_N1DA, places.cos_11RA, places.sin_11RA)


def _split(conv: ConvLinear, num_heads: int) -> nn.ModuleList:
    biases = [None] * num_heads if conv.bias is None else conv.bias.detach().chunk(num_heads)
    return nn.ModuleList(
        ConvLinear.of(
            nn.Parameter(weight, requires_grad=False),
            None if bias is None else nn.Parameter(bias, requires_grad=False),
        )
        for weight, bias in zip(conv.weight.detach().chunk(num_heads), biases, strict=True)
    )
