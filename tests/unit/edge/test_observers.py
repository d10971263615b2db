"""Ranges from streams of batches, against numpy over all values at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_edge.quant.grid import INT8, UINT8, affine_from_range, dequantise, quantise
from octavo_edge.quant.observers import MSE, MinMax, Percentile

BATCHES = st.lists(st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=20), min_size=1, max_size=6)


def shown(observer, batches):
    for batch in batches:
        observer.see(np.asarray(batch, np.float32))
    return observer.range()


@settings(max_examples=50, deadline=None)
@given(batches=BATCHES)
def test_minmax_is_that_of_all_values(batches):
    every = np.concatenate([np.asarray(b, np.float32) for b in batches])
    assert shown(MinMax(), batches) == (every.min(), every.max())


@settings(max_examples=50, deadline=None)
@given(batches=BATCHES)
def test_all_values_are_within_the_hundredth_percentile(batches):
    every = np.concatenate([np.asarray(b, np.float32) for b in batches])
    lowest, highest = shown(Percentile(100.0), batches)
    assert lowest == every.min() and highest == every.max()


def test_a_percentile_is_numpys_up_to_a_bin():
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=5000) * scale for scale in (0.1, 1.0, 3.0)]
    lowest, highest = shown(Percentile(99.0), batches)
    every = np.concatenate(batches)
    width = 2 * np.abs(every).max() / 4096
    assert abs(lowest - np.percentile(every, 0.5)) < 2 * width
    assert abs(highest - np.percentile(every, 99.5)) < 2 * width


def test_the_order_of_batches_changes_nothing():
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=1000) * scale for scale in (1e-3, 10.0, 0.5)]
    forwards, backwards = (shown(Percentile(99.9), order) for order in (batches, batches[::-1]))
    np.testing.assert_allclose(forwards, backwards, rtol=0.02)


@pytest.mark.parametrize("grid", [UINT8, INT8], ids=lambda g: g.name)
def test_the_best_range_for_the_squared_error_is_near_that_of_a_search(grid):
    rng = np.random.default_rng(2)
    values = rng.standard_t(2, size=20000).astype(np.float32)

    def error(lowest, highest):
        scale, zero = affine_from_range(lowest, highest, grid)
        return float(np.mean((dequantise(quantise(values, scale, grid, zero), scale, zero) - values) ** 2))

    chosen = shown(MSE(grid), np.split(values, 4))
    everything = error(values.min(), values.max())
    best = min(error(values.min() * f, values.max() * f) for f in np.linspace(0.3, 1, 100))
    assert error(*chosen) <= best + 0.05 * (everything - best)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    for observer in (MinMax(), Percentile(99.0), MSE(UINT8)):
        with pytest.raises(ValueError, match="not finite"):
            observer.see(np.array([1.0, bad], np.float32))


def test_nothing_seen_is_no_range():
    for observer in (MinMax(), Percentile(99.0), MSE(UINT8)):
        with pytest.raises(ValueError, match="no value"):
            observer.range()


def test_zeros_alone_are_a_range():
    for observer in (MinMax(), Percentile(99.0), MSE(UINT8)):
        assert shown(observer, [np.zeros(4)]) == (0.0, 0.0)
