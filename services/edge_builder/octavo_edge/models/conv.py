"""Matrix products as 1x1 convolutions, the form in which NPUs keep weights. Rows of a batch become columns of an image.

Shapes: I, O channels in and out; T, H, W frames, height, width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from octavo_edge.models.config import UnsupportedModel

__all__ = ["Conv3dSum", "ConvLinear", "convs_of"]


class ConvLinear(nn.Conv2d):
    """A linear layer over the channels of `[1, I, 1, tokens]`; its weight is `[O, I, 1, 1]`."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        # On the meta device: what nn.Conv2d fills in at random would be thrown away.
        super().__init__(in_features, out_features, kernel_size=1, bias=bias, device="meta")

    @classmethod
    def of(cls, weight_OI11: nn.Parameter, bias_O: nn.Parameter | None) -> ConvLinear:
        """A layer that has these very parameters."""
        out_features, in_features = weight_OI11.shape[:2]
        conv = cls(in_features, out_features, bias=bias_O is not None)
        conv.weight, conv.bias = weight_OI11, bias_O
        return conv


def convs_of(linears: Mapping[str, nn.Linear]) -> dict[str, ConvLinear]:
    """The same layers as convolutions, in the same memory.

    Linears that share a parameter give convolutions that share one; a weight that is also an embedding's stays the
    embedding's memory.
    """
    made: dict[int, nn.Parameter] = {}

    def shared(parameter: Tensor, shape: tuple[int, ...]) -> nn.Parameter:
        if id(parameter) not in made:
            made[id(parameter)] = nn.Parameter(parameter.detach().view(shape), requires_grad=False)
        return made[id(parameter)]

    return {
        name: ConvLinear.of(
            shared(linear.weight, (*linear.weight.shape, 1, 1)),
            None if linear.bias is None else shared(linear.bias, tuple(linear.bias.shape)),
        )
        for name, linear in linears.items()
    }


class Conv3dSum(nn.Module):
    """A convolution whose kernel spans all frames, as a sum of one 2-D convolution a frame.

    Exact because such a kernel has one place in time: the temporal stride has no effect, and the spatial stride,
    padding, dilation and groups are the 2-D ones.
    """

    def __init__(self, conv: nn.Conv3d, *, name: str, num_frames: int) -> None:
        """Raises UnsupportedModel, which names the layer, when it is no such convolution."""
        super().__init__()
        _check_temporal(conv, name, num_frames)
        frames = []
        for frame in range(num_frames):
            flat = nn.Conv2d(
                conv.in_channels,
                conv.out_channels,
                kernel_size=_spatial(conv.kernel_size),
                stride=_spatial(conv.stride),
                padding=conv.padding if isinstance(conv.padding, str) else _spatial(conv.padding),
                dilation=_spatial(conv.dilation),
                groups=conv.groups,
                bias=conv.bias is not None and frame == 0,  # the sum has it once
                padding_mode=conv.padding_mode,
                device="meta",
            )
            flat.weight = nn.Parameter(conv.weight.detach()[:, :, frame], requires_grad=False)
            if flat.bias is not None:
                flat.bias = conv.bias
            frames.append(flat)
        self.frames = nn.ModuleList(frames)

    def forward(self, x_BITHW: Tensor) -> Tensor:
        """`[B, I, T, H, W]` to `[B, O, 1, H', W']`, as the Conv3d gives."""
        first, *rest = self.frames
        total = first(x_BITHW[:, :, 0])
        for frame, conv in enumerate(rest, start=1):
            total = torch.add(total, conv(x_BITHW[:, :, frame]))
        return total.unsqueeze(2)


def _check_temporal(conv: nn.Conv3d, name: str, num_frames: int) -> None:
    kernel = conv.kernel_size[0]
    if kernel != num_frames:
        raise UnsupportedModel(
            f"{name}: a Conv3d over {num_frames} frames with a kernel of {kernel} is no sum of Conv2d",
            hint="only a kernel that spans all frames can be decomposed",
        )
    # 'same' pads in time as soon as the kernel is longer than a frame; 'valid' never pads.
    padding = (kernel - 1 if conv.padding == "same" else 0) if isinstance(conv.padding, str) else conv.padding[0]
    if padding:
        raise UnsupportedModel(f"{name}: a Conv3d that pads in time is no sum of Conv2d")
    if conv.dilation[0] != 1 and kernel > 1:
        raise UnsupportedModel(f"{name}: a Conv3d that is dilated in time is no sum of Conv2d")


def _spatial(value: tuple[int, ...]) -> tuple[int, int]:
    return value[1], value[2]
