"""LPBQ: blocks of 4 bits on a channel's 8-bit grid."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from octavo_edge.quant import grid as grids
from octavo_edge.quant import seqmse, weights

WEIGHTS = npst.arrays(np.float32, (3, 64), elements=st.floats(-100, 100, width=32))


@settings(max_examples=50, deadline=None)
@given(weight=WEIGHTS)
def test_the_scale_of_a_block_is_one_to_sixteen_times_its_channels(weight):
    scales = weights.lpbq_scales(weight, grids.INT4, 16)
    assert scales.integer.min() >= 1 and scales.integer.max() <= 16
    assert np.all(scales.integer.max(axis=1) == 16) or not weight.any(axis=1).all()
    free = weights.block_scales(weight, grids.INT4, 16)
    # Rounding to the nearest integer moves a scale by half a channel scale; a scale below one is lifted to one.
    moved = np.abs(scales.block - np.where(weight.reshape(3, 4, 16).any(axis=2), free.block, scales.block))
    assert np.all(moved <= np.maximum(0.501 * scales.channel[:, None], scales.channel[:, None] - free.block))


@settings(max_examples=50, deadline=None)
@given(weight=WEIGHTS)
def test_weights_lie_on_the_channels_eight_bit_grid(weight):
    scales = weights.lpbq_scales(weight, grids.INT4, 16)
    integers = weights.to_integers(weight, scales, grids.INT4)
    on_eight_bits = integers.astype(np.int32) * np.repeat(scales.integer.astype(np.int32), 16, axis=1)
    assert on_eight_bits.min() >= -128 and on_eight_bits.max() <= 127
    np.testing.assert_allclose(
        weights.to_floats(integers, scales), on_eight_bits * scales.channel[:, None], rtol=1e-6, atol=0
    )


def test_a_block_of_zeros_costs_the_others_nothing():
    rng = np.random.default_rng(4)
    weight = (0.05 * rng.normal(size=(4, 64))).astype(np.float32)
    alone = weights.lpbq_scales(weight[:, 16:], grids.INT4, 16)
    weight[:, :16] = 0
    for scales in (
        weights.lpbq_scales(weight, grids.INT4, 16),
        seqmse.search_lpbq(weight, np.eye(64), grids.INT4, 16, num_candidates=1),
    ):
        np.testing.assert_array_equal(scales.channel, alone.channel)


def test_it_lies_between_one_scale_a_channel_and_free_scales():
    rng = np.random.default_rng(3)
    weight = (rng.normal(size=(16, 256)) * np.repeat(rng.uniform(0.05, 1, size=(16, 4)), 64, axis=1)).astype(np.float32)

    def error(scales):
        return float(np.sum((weights.to_floats(weights.to_integers(weight, scales, grids.INT4), scales) - weight) ** 2))

    channel = error(weights.channel_scales(weight, grids.INT4))
    lpbq = error(weights.lpbq_scales(weight, grids.INT4, 64))
    free = error(weights.block_scales(weight, grids.INT4, 64))
    assert free < lpbq < channel
    assert lpbq < 1.1 * free
