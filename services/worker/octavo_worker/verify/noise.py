"""Counter-based randomness: the same key gives the same number, whatever else was drawn before. Pure numpy.

The key is (seed, choice, absolute position, label); a token's number is the output of a SplitMix64 stream that starts
at the key, at the index of the token's id. It depends on no rank and no other token, so only survivors need it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


class Label(IntEnum):
    """What a number is for; different uses at one position must not share noise."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def _mix(value: int) -> int:
    """The finaliser of SplitMix64: every input bit moves every output bit."""
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)


def noise_key(*, seed: int, choice: int, position: int, label: Label) -> int:
    """A 64-bit key. The seed is any int64, negative ones too."""
    key = _mix((seed + _STEP) & _MASK)
    for part in (choice, position, int(label)):
        key = _mix((key + (part + 1) * _STEP) & _MASK)
    return key


def uniforms(key: int, tokens: np.ndarray) -> np.ndarray:
    """Numbers in (0, 1), float64, never 0 or 1, one for each token id."""
    bits = tokens.astype(np.uint64)
    bits += np.uint64(1)
    bits *= np.uint64(_STEP)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_FIRST)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_SECOND)
    bits ^= bits >> np.uint64(31)
    bits >>= np.uint64(11)
    # Half a step above the grid, so that 0 cannot occur; the top of the grid stays below 1.
    return (bits.astype(np.float64) + 0.5) * 2.0**-53


def gumbels(key: int, tokens: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise, float64: the largest of logit + noise is a draw from the softmax."""
    return -np.log(-np.log(uniforms(key, tokens)))
