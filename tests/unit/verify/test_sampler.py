"""The sampler against brute force in float64 over the whole vocabulary, and against exact distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_worker.engine.types import SamplingParams
from octavo_worker.kernels.filters import _BUCKETS, _bucket, _find_limit
from octavo_worker.kernels.logits import LogitKernels
from octavo_worker.verify.noise import Label, gumbels, noise_key
from octavo_worker.verify.sampler import GREEDY, Sampler, make_draw


def draw_tokens(logits_SV, draws):
    return Sampler(LogitKernels()).draw(logits_SV, range(len(draws)), draws)


def a_draw(*, position, choice=0, **values):
    return make_draw(SamplingParams(max_tokens=1, **values), choice=choice, position=position)


def survivors(logits, temperature, top_k, top_p, min_p=0.0):
    """Ids that pass, by the book: sort everything by (logit falling, id), cut at k, cut at the mass."""
    scaled = [float(x) / temperature for x in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-float(logits[i]), i))
    if top_k > 0:
        order = order[:top_k]
    top = scaled[order[0]]
    weights = [math.exp(scaled[i] - top) for i in order]
    if top_p < 1.0:
        total, reached, kept = math.fsum(weights), 0.0, 0
        while reached < top_p * total and kept < len(order):
            reached += weights[kept]
            kept += 1
        order = order[: max(kept, 1)]
    return [i for i in order if math.exp(scaled[i] - top) >= min_p]


def brute_force(logits, *, temperature, top_k, top_p, min_p, seed, position):
    """The draw by the book, with noise for everybody."""
    noise = gumbels(noise_key(seed=seed, choice=0, position=position, label=Label.TARGET), np.arange(len(logits)))
    kept = survivors(logits, temperature, top_k, top_p, min_p)
    return max(kept, key=lambda i: float(logits[i]) / temperature + noise[i])


def draw(logits_SV, **params):
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "choice": 0, "position": 5} | params
    positions = range(values.pop("position"), 10**9)
    draws = [a_draw(position=p, **values) for p, _ in zip(positions, logits_SV, strict=False)]
    return draw_tokens(logits_SV, draws)[0]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    size=st.sampled_from([3, 50, 1023, 1024, 1500, 4000]),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 40, 1023, 1024, 1025, 3000, 100_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.4, 1.0]),
    spread=st.sampled_from([0.05, 1.0, 8.0]),
    steps=st.sampled_from([0, 4]),
)
def test_draws_equal_brute_force(seed, size, temperature, top_k, top_p, min_p, spread, steps):
    generator = torch.Generator().manual_seed(seed % 2**31)
    logits = torch.randn(3, size, generator=generator) * spread
    if steps:
        # Many equal logits: ranks must be resolved by id.
        logits = (logits * steps).round() / steps
    tokens = draw(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    for row, token in enumerate(tokens):
        expected = brute_force(
            logits[row].tolist(),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            position=5 + row,
        )
        assert token == expected


@pytest.mark.parametrize("spread", [0.02, 3.0])
@pytest.mark.parametrize(
    "way",
    [
        {"temperature": 1.5, "top_p": 0.95},
        {"temperature": 1.0, "top_p": 0.3},
        {"temperature": 0.7, "top_k": 5000},
        {"temperature": 2.0, "top_k": 30_000, "top_p": 0.9},
        {"temperature": 1.5, "top_p": 0.99, "min_p": 0.01},
    ],
    ids=str,
)
def test_draws_among_very_many_equal_brute_force(spread, way):
    logits = torch.randn(2, 49_152, generator=torch.Generator().manual_seed(8)) * spread
    # A few equal ones at every border.
    logits = (logits * 2048).round() / 2048
    for seed in range(2):
        for row, token in enumerate(draw(logits, seed=seed, **way)):
            expected = brute_force(
                logits[row].tolist(), **{"top_k": 0, "top_p": 1.0, "min_p": 0.0} | way, seed=seed, position=5 + row
            )
            assert token == expected


def test_a_rows_draw_does_not_depend_on_its_neighbours():
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(1)) * 3
    draws = [
        GREEDY,
        a_draw(temperature=1.0, top_k=0, top_p=0.9, seed=1, choice=0, position=3),
        a_draw(temperature=0.8, top_k=7, top_p=1.0, seed=2, choice=1, position=3),
        a_draw(temperature=1.3, top_k=0, top_p=1.0, seed=3, choice=0, position=900),
        a_draw(temperature=0.5, top_k=50, top_p=0.8, seed=4, choice=0, position=4),
        GREEDY,
    ]
    together, trusted = draw_tokens(logits, draws)
    assert all(trusted)
    for row in range(6):
        assert draw_tokens(logits[row : row + 1], draws[row : row + 1])[0] == together[row : row + 1]


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.8), (5, 0.7)], ids=["all", "top_k", "top_p", "both"]
)
def test_draws_follow_the_exact_distribution(top_k, top_p):
    num_draws, temperature = 20_000, 0.9
    logits = torch.tensor([1.5, 0.2, -0.4, 1.1, 0.9, -2.0, 0.3, 0.6])
    kept = survivors(logits.tolist(), temperature, top_k, top_p)
    weights = np.array([math.exp(float(logits[i]) / temperature) for i in kept])
    expected = np.zeros(8)
    expected[kept] = weights / weights.sum()
    tokens = draw(logits.expand(num_draws, 8), temperature=temperature, top_k=top_k, top_p=top_p, seed=12)
    counts = np.bincount(tokens, minlength=8)
    assert counts[expected == 0].sum() == 0
    wanted = expected[kept] * num_draws
    # Chi-square with at most 7 degrees of freedom: 99.9 % lie below 24.4.
    assert ((counts[kept] - wanted) ** 2 / wanted).sum() < 24.4


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]])
    assert draw_tokens(logits, [GREEDY, GREEDY])[0] == [1, 0]


def test_a_temperature_near_zero_is_greedy_and_does_not_overflow():
    logits = torch.randn(4, 2000, generator=torch.Generator().manual_seed(3))
    for filters in ({}, {"top_k": 10}, {"top_p": 0.9}):
        assert draw(logits, temperature=1e-7, **filters) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e30, 1e38, 1e50, 1.7e308])
@pytest.mark.parametrize("limits", [{"top_p": 0.9}, {"top_p": 0.9, "top_k": 1500}, {"top_k": 1500}, {"min_p": 0.5}])
@pytest.mark.parametrize("forbidden", [slice(0, 0), slice(1, 1), slice(7, None, 2), slice(3, None)])
def test_the_hottest_draws_are_of_allowed_tokens_and_write_nowhere_else(temperature, limits, forbidden):
    logits = torch.randn(4, 4000, generator=torch.Generator().manual_seed(8))
    logits[:, forbidden] = -math.inf
    for token, row in zip(draw(logits, temperature=temperature, **limits), logits, strict=True):
        assert 0 <= token < 4000 and row[token] > -math.inf


@pytest.mark.parametrize("width", [64.0, math.inf, math.nan])
def test_a_limit_is_found_in_bounds_whatever_the_numbers_are(width):
    """A width without an end makes 0 * infinity of a forbidden token: its place must be one that there is."""
    size = 4000
    logits = np.full(size, -np.inf, np.float32)
    logits[::3] = np.linspace(0, 5, len(logits[::3]))
    weights, ranks = np.exp(logits - logits.max()), np.zeros(size, np.uint64)
    _find_limit(logits, logits.view(np.int32), logits.max(), width, weights, False, 0.9 * weights.sum(), ranks)
    place = _bucket(np.float32(-np.inf), np.float32(5.0), np.float32(0.0))
    assert 0 <= place < _BUCKETS


def test_minus_infinity_is_never_drawn():
    logits = torch.full((200, 100), -math.inf)
    logits[:, 40:43] = 0.0
    for filters in ({}, {"top_k": 10}, {"top_p": 0.99}):
        assert set(draw(logits, **filters)) == {40, 41, 42}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_named_and_the_others_are_drawn(bad):
    logits = torch.randn(3, 2000, generator=torch.Generator().manual_seed(4))
    draws = [a_draw(temperature=1.0, top_k=0, top_p=0.9, seed=1, choice=0, position=1), GREEDY, GREEDY]
    clean, _ = draw_tokens(logits, draws)
    for row in range(3):
        broken = logits.clone()
        broken[row, 77] = bad
        tokens, trusted = draw_tokens(broken, draws)
        assert trusted == [i != row for i in range(3)]
        assert [t for i, t in enumerate(tokens) if i != row] == [t for i, t in enumerate(clean) if i != row]
