"""Norm, rotation and feed-forward of the adapted decoder.

Shapes: A new tokens, H hidden size, F intermediate size, D size of a head, R = D / 2, N heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_edge.models.config import AdaptedConfig
from octavo_edge.models.conv import ConvLinear

__all__ = ["FeedForward", "RMSNorm", "rotate", "to_channels", "to_rows"]

# Residuals of real models reach 24,000, and fp16 overflows at 65,504 when such a value is squared. A power of two is
# exact, so in float32 nothing is lost.
_DOWN = 1.0 / 128.0


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, with squares small enough for fp16."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Any shape that ends in `size`; the same shape."""
        small = x * _DOWN
        mean = small.pow(2).mean(-1, keepdim=True)
        return small * torch.rsqrt(mean + self.eps * _DOWN * _DOWN) * self.weight


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: AdaptedConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = ConvLinear(hidden, inner, bias=bias)
        self.up_proj = ConvLinear(hidden, inner, bias=bias)
        self.down_proj = ConvLinear(inner, hidden, bias=bias)

    def forward(self, x_1H1A: Tensor) -> Tensor:
        """Channels in, channels out."""
        return self.down_proj(F.silu(self.gate_proj(x_1H1A)) * self.up_proj(x_1H1A))


def rotate(x_N1DA: Tensor, cos_11RA: Tensor, sin_11RA: Tensor) -> Tensor:
    """Rotate the pairs (i, i + R) of each head by the positions' angles; heads are columns here."""
    low, high = x_N1DA.chunk(2, dim=2)
    return torch.cat((low * cos_11RA - high * sin_11RA, high * cos_11RA + low * sin_11RA), dim=2)


def to_channels(x_11AH: Tensor) -> Tensor:
    """`[1, 1, A, H]` to `[1, H, 1, A]`, what a convolution takes."""
    return x_11AH.permute(0, 3, 1, 2)


def to_rows(x_1H1A: Tensor) -> Tensor:
    """The inverse of `to_channels`."""
    return x_1H1A.permute(0, 2, 3, 1)
