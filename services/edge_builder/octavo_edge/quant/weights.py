"""Weights onto integer grids: a scale for each channel, for each block, or blocks of small integers (LPBQ).

Pure arithmetic on matrices. Shapes: O output channels, I inputs of a channel, B = I / block_size blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant.errors import CannotQuantise
from octavo_edge.quant.grid import INT8, LEAST_SCALE, Floats, IntGrid, Ints, dequantise, quantise, safe_scale


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChannelScales:
    """One scale a channel."""

    channel: Floats  # [O]

    @property
    def block_size(self) -> int | None:
        """None: a channel is not divided."""
        return None

    def expand(self, num_inputs: int) -> Floats:
        """The scale of every weight, to be broadcast: [O, 1]."""
        del num_inputs
        return self.channel[:, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockScales:
    """One scale a block."""

    block: Floats  # [O, B]
    block_size: int

    def expand(self, num_inputs: int) -> Floats:
        """The scale of every weight, [O, I]."""
        assert self.block.shape[1] * self.block_size == num_inputs
        return np.repeat(self.block, self.block_size, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LpbqScales:
    """A scale a channel, and an integer a block that multiplies it."""

    channel: Floats  # [O]
    integer: NDArray[np.uint8]  # [O, B], from 1
    block_size: int

    @property
    def block(self) -> Floats:
        """The scale of each block, [O, B]."""
        return self.integer.astype(np.float32) * self.channel[:, None]

    def expand(self, num_inputs: int) -> Floats:
        """The scale of every weight, [O, I]."""
        assert self.integer.shape[1] * self.block_size == num_inputs
        return np.repeat(self.block, self.block_size, axis=1)


Scales = ChannelScales | BlockScales | LpbqScales
S = TypeVar("S", ChannelScales, BlockScales, LpbqScales)


def joined(parts: Sequence[Scales]) -> Scales:
    """Scales of consecutive channels as one; all of one kind."""
    first = parts[0]
    match first:
        case ChannelScales():
            return ChannelScales(channel=np.concatenate([_as(ChannelScales, part).channel for part in parts]))
        case BlockScales():
            block = np.concatenate([_as(BlockScales, part).block for part in parts])
            return BlockScales(block=block, block_size=first.block_size)
        case LpbqScales():
            channel = np.concatenate([_as(LpbqScales, part).channel for part in parts])
            integer = np.concatenate([_as(LpbqScales, part).integer for part in parts])
            return LpbqScales(channel=channel, integer=integer, block_size=first.block_size)


def channel_scales(weight_OI: Floats, grid: IntGrid) -> ChannelScales:
    """MinMax: the least scale that clips no weight of the channel.

    The grid has one negative integer more than positive ones, so a channel whose largest magnitude is negative has
    finer steps: an eighth finer with 4 bits.
    """
    return ChannelScales(channel=safe_scale(_least_scale(weight_OI, grid, axis=1)))


def block_scales(weight_OI: Floats, grid: IntGrid, block_size: int) -> BlockScales:
    """MinMax of each block. ValueError if blocks do not divide a channel."""
    block = _least_scale(_in_blocks(weight_OI, block_size), grid, axis=2)
    # Any scale fits a block of zeros. One beyond the channel's others would be what LPBQ's channel scale is made for.
    block = np.where(block < LEAST_SCALE, block.max(axis=1, keepdims=True), block)
    return BlockScales(block=safe_scale(block), block_size=block_size)


def lpbq_scales(weight_OI: Floats, grid: IntGrid, block_size: int, decompressed: IntGrid = INT8) -> LpbqScales:
    """MinMax of each block, rounded to an integer times the channel's scale. ValueError as block_scales."""
    return lpbq_from_blocks(block_scales(weight_OI, grid, block_size), grid, decompressed)


def lpbq_from_blocks(scales: BlockScales, grid: IntGrid, decompressed: IntGrid = INT8) -> LpbqScales:
    """The nearest LPBQ scales: the channel's largest block gets the greatest integer, 2 ** (difference of bits)."""
    most = largest_int_scale(grid, decompressed)
    channel = safe_scale(scales.block.max(axis=1) / most)
    integer = np.clip(np.rint(scales.block / channel[:, None]), 1, most).astype(np.uint8)
    return LpbqScales(channel=channel, integer=integer, block_size=scales.block_size)


def largest_int_scale(grid: IntGrid, decompressed: IntGrid = INT8) -> int:
    """The greatest integer of LPBQ: 16 for 4-bit blocks on an 8-bit grid."""
    assert grid.bits < decompressed.bits
    return 1 << (decompressed.bits - grid.bits)


def to_integers(weight_OI: Floats, scales: Scales, grid: IntGrid) -> Ints:
    """Nearest integers, [O, I]."""
    return quantise(weight_OI, scales.expand(weight_OI.shape[1]), grid)


def to_floats(integers_OI: Ints, scales: Scales) -> Floats:
    """What integers stand for, [O, I]."""
    return dequantise(integers_OI, scales.expand(integers_OI.shape[1]))


def _as(kind: type[S], scales: Scales) -> S:
    assert isinstance(scales, kind)
    return scales


def _least_scale(weights: Floats, grid: IntGrid, *, axis: int) -> NDArray[Any]:
    assert grid.signed, "weights are positive and negative"
    return np.maximum(weights.max(axis=axis) / grid.highest, weights.min(axis=axis) / grid.lowest)


def _in_blocks(weight_OI: Floats, block_size: int) -> Floats:
    """[O, B, block_size]."""
    num_channels, num_inputs = weight_OI.shape
    if num_inputs % block_size:
        raise CannotQuantise(f"blocks of {block_size} do not divide {num_inputs} inputs")
    return weight_OI.reshape(num_channels, -1, block_size)
