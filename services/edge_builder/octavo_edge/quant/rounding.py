"""One weight tensor of a graph to integers, as a plan asks. Knows the layouts of Conv, MatMul and tables.

Shapes: O output channels, I inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant import seqmse, weights
from octavo_edge.quant.encodings import Lpbq, ParamEncoding, PerBlock, PerChannel, PerTensor
from octavo_edge.quant.errors import CannotQuantise
from octavo_edge.quant.grid import UINT16, Floats, Ints, affine_from_range, quantise, symmetric_from_range
from octavo_edge.quant.plan import QuantisedWeight, WeightPlan
from octavo_edge.recipe import Granularity

Gram = NDArray[np.float64]

_ROWS = 4096  # output channels at a time


def round_weight(weight: Floats, channel_axis: int, plan: WeightPlan, gram_II: Gram | None) -> QuantisedWeight:
    """Integers and encoding of a weight whose output channels lie on ``channel_axis`` (0 or 1).

    Raises:
        CannotQuantise: Blocks do not divide the inputs, or the weight has a kernel and blocks were asked for.
    """
    if plan.granularity is Granularity.PTQ:
        return per_tensor(weight, plan)
    matrix = _as_matrix(weight, channel_axis)
    if plan.block_size is not None and matrix.shape[1] != weight.shape[1 - channel_axis]:
        raise CannotQuantise(f"a weight of shape {weight.shape} has no blocks of inputs: its kernel is not 1x1")
    gram = gram_II if gram_II is not None and gram_II.shape[0] == matrix.shape[1] else None
    # Channels know nothing of each other, and a head of 100,000 of them in float64 would be gigabytes.
    parts = [_round_rows(matrix[i : i + _ROWS], plan, gram) for i in range(0, len(matrix), _ROWS)]
    scales = weights.joined([part[0] for part in parts])
    integers = np.concatenate([part[1] for part in parts])
    encoding = _encoding(scales, plan, channel_axis, weight.ndim)
    return QuantisedWeight(integers=_from_matrix(integers, channel_axis, weight.shape), encoding=encoding)


def per_tensor(values: Floats, plan: WeightPlan) -> QuantisedWeight:
    """One scale for a tensor: symmetric on a signed grid, else over its range."""
    lowest, highest = float(values.min()), float(values.max())
    if plan.grid.signed:
        scale, zero_point = symmetric_from_range(lowest, highest, plan.grid), 0
    else:
        scale, zero_point = affine_from_range(lowest, highest, plan.grid)
    encoding = PerTensor(grid=plan.grid, scale=scale, zero_point=zero_point)
    return QuantisedWeight(integers=quantise(values, scale, plan.grid, zero_point), encoding=encoding)


CONSTANT = WeightPlan(grid=UINT16, granularity=Granularity.PTQ)


def inputs_matrix(values: NDArray[Any], is_conv: bool) -> NDArray[Any]:
    """A layer's input as tokens [T, I]: channels are the second dimension of a Conv's, the last of a MatMul's."""
    moved = np.moveaxis(values, 1, -1) if is_conv else values
    return moved.reshape(-1, moved.shape[-1])


def _round_rows(matrix_OI: Floats, plan: WeightPlan, gram_II: Gram | None) -> tuple[weights.Scales, Ints]:
    scales = _scales(matrix_OI, plan, gram_II)
    if plan.feedback and gram_II is not None:
        return scales, seqmse.round_with_feedback(matrix_OI, gram_II, scales, plan.grid)
    return scales, weights.to_integers(matrix_OI, scales, plan.grid)


def _scales(matrix_OI: Floats, plan: WeightPlan, gram_II: Gram | None) -> weights.Scales:
    searched = plan.num_candidates if gram_II is not None else 0
    match plan.granularity:
        case Granularity.BQ:
            assert plan.block_size is not None
            if searched and gram_II is not None:
                return seqmse.search_blocks(matrix_OI, gram_II, plan.grid, plan.block_size, searched)
            return weights.block_scales(matrix_OI, plan.grid, plan.block_size)
        case Granularity.LPBQ:
            assert plan.block_size is not None
            if searched and gram_II is not None:
                return seqmse.search_lpbq(matrix_OI, gram_II, plan.grid, plan.block_size, num_candidates=searched)
            return weights.lpbq_scales(matrix_OI, plan.grid, plan.block_size)
        case _:
            if searched and gram_II is not None:
                return seqmse.search_channels(matrix_OI, gram_II, plan.grid, searched)
            return weights.channel_scales(matrix_OI, plan.grid)


def _encoding(scales: weights.Scales, plan: WeightPlan, channel_axis: int, rank: int) -> ParamEncoding:
    match scales:
        case weights.ChannelScales():
            return PerChannel(grid=plan.grid, axis=channel_axis, scales=scales.channel)
        case weights.BlockScales():
            size = scales.block_size
            return PerBlock(grid=plan.grid, axis=1 - channel_axis, block_size=size, scales=scales.block, rank=rank)
        case weights.LpbqScales():
            return Lpbq(
                grid=plan.grid,
                axis=1 - channel_axis,
                block_size=scales.block_size,
                int_scales=scales.integer,
                channel_scales=scales.channel,
                rank=rank,
            )


def _as_matrix(weight: Floats, channel_axis: int) -> Floats:
    moved = np.moveaxis(weight, channel_axis, 0)
    return np.ascontiguousarray(moved.reshape(moved.shape[0], -1), dtype=np.float32)


def _from_matrix(matrix_OI: NDArray[Any], channel_axis: int, shape: tuple[int, ...]) -> NDArray[Any]:
    moved = [shape[channel_axis], *(size for axis, size in enumerate(shape) if axis != channel_axis)]
    return np.ascontiguousarray(np.moveaxis(matrix_OI.reshape(moved), 0, channel_axis))
