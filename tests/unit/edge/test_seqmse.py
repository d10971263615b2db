"""SeqMSE against exhaustive search on replayed outputs, in float64."""

import itertools

import numpy as np
import pytest

from octavo_edge.quant import grid as grids
from octavo_edge.quant import rounding, seqmse, weights
from octavo_edge.quant.plan import WeightPlan
from octavo_edge.recipe import Granularity


def layer(seed, *, outputs=6, inputs=32, tokens=50, spike=1.0):
    """A weight, and correlated inputs of which the first token may be a massive activation."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(outputs, inputs)).astype(np.float32)
    mixed = rng.normal(size=(tokens, inputs // 2)) @ rng.normal(size=(inputs // 2, inputs))
    x = (mixed + 0.1 * rng.normal(size=(tokens, inputs))).astype(np.float32)
    x[0, 3] *= spike
    gram = seqmse.Gram(inputs)
    gram.add(x[:20])
    gram.add(x[20:])
    assert gram.num_tokens == tokens
    return weight, x, gram.matrix


def replayed_error(weight, approximation, x):
    """Squared error of each output over all tokens, by running the layer."""
    difference = weight.astype(np.float64) - approximation.astype(np.float64)
    return np.sum((x.astype(np.float64) @ difference.T) ** 2, axis=0)


@pytest.mark.parametrize("spike", [1.0, 2e4])
def test_the_gram_matrix_knows_the_error_of_the_output(spike):
    weight, x, gram = layer(0, spike=spike)
    scales = weights.channel_scales(weight, grids.INT4)
    rounded = weights.to_floats(weights.to_integers(weight, scales, grids.INT4), scales)
    np.testing.assert_allclose(
        seqmse.output_error(weight, rounded, gram), replayed_error(weight, rounded, x), rtol=1e-5
    )


@pytest.mark.parametrize("grid", [grids.INT4, grids.INT8], ids=lambda g: g.name)
def test_each_channel_gets_the_best_of_all_candidates(grid):
    weight, x, gram = layer(1)
    found = seqmse.search_channels(weight, gram, grid, num_candidates=20)
    widest = weights.channel_scales(weight, grid).channel
    errors = []
    for index in range(20):
        scales = weights.ChannelScales(channel=(widest * np.float32((index + 1) / 20)).astype(np.float32))
        errors.append(replayed_error(weight, weights.to_floats(weights.to_integers(weight, scales, grid), scales), x))
    best = np.argmin(errors, axis=0)
    np.testing.assert_allclose(found.channel, widest * (best + 1) / 20, rtol=1e-6)


@pytest.mark.parametrize("spike", [1.0, 2e4])
@pytest.mark.parametrize("tokens", [60, 600], ids=["fewer tokens than inputs", "more"])
def test_no_candidate_is_passed_over_that_would_be_the_best(spike, tokens):
    # More inputs than a sketch has columns, and inputs that belong together, as a model's are.
    rng = np.random.default_rng(8)
    weight = rng.standard_normal((40, 200)).astype(np.float32)
    x = (rng.standard_normal((tokens, 200)) @ rng.standard_normal((200, 200)) * rng.uniform(0.01, 1, 200)).astype(
        np.float32
    )
    x[:, 3] *= spike
    gram = seqmse.Gram(200)
    gram.add(x)
    found = seqmse.search_channels(weight, gram.matrix, grids.INT4, num_candidates=20)
    widest = weights.channel_scales(weight, grids.INT4).channel
    every = [weights.ChannelScales(channel=(widest * np.float32(n / 20)).astype(np.float32)) for n in range(1, 21)]

    def error(scales):
        return replayed_error(weight, weights.to_floats(weights.to_integers(weight, scales, grids.INT4), scales), x)

    np.testing.assert_array_less(error(found), np.min([error(scales) for scales in every], axis=0) * 1.0001)


def test_blocks_come_close_to_the_best_of_all_combinations():
    weight, x, gram = layer(2, outputs=3, inputs=32)
    found = seqmse.search_blocks(weight, gram, grids.INT4, 16, num_candidates=10)
    widest = weights.block_scales(weight, grids.INT4, 16).block
    combinations = []
    for left, right in itertools.product(range(1, 11), repeat=2):
        block = (widest * np.array([left, right], np.float32) / np.float32(10)).astype(np.float32)
        scales = weights.BlockScales(block=block, block_size=16)
        combinations.append(
            replayed_error(weight, weights.to_floats(weights.to_integers(weight, scales, grids.INT4), scales), x)
        )
    ours = replayed_error(weight, weights.to_floats(weights.to_integers(weight, found, grids.INT4), found), x)
    best, plain = np.min(combinations, axis=0), combinations[-1]
    assert np.all(ours >= best * 0.999)
    assert np.all(ours <= plain)
    assert np.sum(ours - best) <= 0.1 * np.sum(plain - best)


def test_lpbq_keeps_its_grid_and_beats_minmax():
    weight, x, gram = layer(3, outputs=8, inputs=128)
    found = seqmse.search_lpbq(weight, gram, grids.INT4, 32)
    assert found.integer.min() >= 1 and found.integer.max() <= 16
    plain = weights.lpbq_scales(weight, grids.INT4, 32)

    def error(scales):
        return replayed_error(weight, weights.to_floats(weights.to_integers(weight, scales, grids.INT4), scales), x)

    assert np.sum(error(found)) < 0.9 * np.sum(error(plain))


def test_feedback_beats_the_nearest_integers_and_stays_on_the_grid():
    weight, x, gram = layer(4, outputs=8, inputs=128, tokens=400)
    scales = weights.channel_scales(weight, grids.INT4)
    integers = seqmse.round_with_feedback(weight, gram, scales, grids.INT4)
    assert integers.min() >= -8 and integers.max() <= 7
    nearest = replayed_error(weight, weights.to_floats(weights.to_integers(weight, scales, grids.INT4), scales), x)
    ours = replayed_error(weight, weights.to_floats(integers, scales), x)
    assert np.all(ours <= nearest * 1.0001)
    assert np.sum(ours) < 0.5 * np.sum(nearest)


def test_inputs_that_never_varied_do_no_harm():
    weight, _, _ = layer(5)
    silent = np.zeros((32, 32))
    scales = seqmse.search_channels(weight, silent, grids.INT4)
    integers = seqmse.round_with_feedback(weight, silent, scales, grids.INT4)
    assert np.isfinite(weights.to_floats(integers, scales)).all()


@pytest.mark.parametrize("granularity", [Granularity.PCQ, Granularity.BQ, Granularity.LPBQ])
def test_a_wide_layer_is_rounded_as_its_rows_alone_are(monkeypatch, granularity):
    weight, _, gram = layer(6, outputs=10, inputs=64)
    block_size = None if granularity is Granularity.PCQ else 16
    plan = WeightPlan(grid=grids.INT4, granularity=granularity, block_size=block_size, num_candidates=8, feedback=True)
    whole = rounding.round_weight(weight, 0, plan, gram)
    monkeypatch.setattr(rounding, "_ROWS", 3)
    parts = rounding.round_weight(weight, 0, plan, gram)
    np.testing.assert_array_equal(whole.integers, parts.integers)
    np.testing.assert_array_equal(whole.floats(), parts.floats())


def test_a_matmuls_weight_is_its_convs_turned_around():
    weight, _, gram = layer(7, outputs=8, inputs=32)
    plan = WeightPlan(grid=grids.INT4, granularity=Granularity.LPBQ, block_size=16, num_candidates=8)
    conv = rounding.round_weight(weight[:, :, None, None], 0, plan, gram)
    matmul = rounding.round_weight(np.ascontiguousarray(weight.T), 1, plan, gram)
    np.testing.assert_array_equal(conv.integers[:, :, 0, 0].T, matmul.integers)
    np.testing.assert_array_equal(conv.floats()[:, :, 0, 0].T, matmul.floats())
