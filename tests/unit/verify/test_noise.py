"""Counter-based noise: against a plain implementation of SplitMix64, and as a source of uniform numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo_worker.verify.noise import Label, gumbels, noise_key, uniforms

MASK = 2**64 - 1


def splitmix64(state):
    """The published generator: state and output of one step, in Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def test_the_plain_generator_gives_the_published_numbers():
    state, numbers = 1234567, []
    for _ in range(3):
        state, number = splitmix64(state)
        numbers.append(number)
    assert numbers == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_token_gets_the_output_of_the_stream_at_its_id():
    key, state = noise_key(seed=5, choice=0, position=17, label=Label.TARGET), None
    state = key
    for token in range(50):
        state, number = splitmix64(state)
        assert uniforms(key, np.array([token]))[0] == ((number >> 11) + 0.5) * 2.0**-53


def test_a_tokens_noise_does_not_depend_on_the_others_asked_for():
    key = noise_key(seed=-(2**63), choice=3, position=8191, label=Label.DRAFT)
    everything = uniforms(key, np.arange(50_000))
    some = np.array([49_999, 0, 17, 4242])
    assert np.array_equal(uniforms(key, some), everything[some])


def test_each_part_of_the_key_matters():
    keys = {
        noise_key(seed=seed, choice=choice, position=position, label=label)
        for seed in (-1, 0, 1, 2**62)
        for choice in range(4)
        for position in range(40)
        for label in Label
    }
    assert len(keys) == 4 * 4 * 40 * len(Label)


def test_numbers_lie_strictly_between_0_and_1_and_are_uniform():
    key = noise_key(seed=11, choice=0, position=0, label=Label.TARGET)
    numbers = uniforms(key, np.arange(200_000))
    assert numbers.min() > 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    # Chi-square with 99 degrees of freedom: 99.9 % lie below 149.
    assert ((counts - 2000) ** 2 / 2000).sum() < 149


def test_neighbouring_positions_and_seeds_are_uncorrelated():
    def row(**parts):
        return uniforms(
            noise_key(**{"seed": 1, "choice": 0, "position": 1, "label": Label.TARGET} | parts), np.arange(20_000)
        )

    for other in (row(position=2), row(seed=2), row(choice=1), row(label=Label.ACCEPT)):
        assert abs(np.corrcoef(row(), other)[0, 1]) < 4 / math.sqrt(20_000)


def test_gumbel_noise_has_the_gumbels_mean():
    noise = gumbels(noise_key(seed=3, choice=0, position=9, label=Label.TARGET), np.arange(200_000))
    assert noise.mean() == pytest.approx(0.5772156649, abs=0.015)
