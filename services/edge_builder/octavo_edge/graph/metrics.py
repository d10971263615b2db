"""How far a result is from its reference. Sums are float64; nothing here knows where the numbers come from.

Shapes: `[..., V]` logits, V the vocabulary; every leading index is one position.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "centred_sqnr_db",
    "decibels",
    "energies",
    "mean_kl",
    "mean_nll",
    "perplexity",
    "sqnr_db",
    "top1_agreement",
]

Floats = NDArray[np.floating[Any]]
_ROWS = 64  # positions at a time: a whole window of float64 logits of a large vocabulary would be gigabytes


def sqnr_db(reference: Floats, value: Floats) -> float:
    """Signal to quantisation noise: 10 log10(sum reference^2 / sum error^2); infinite when equal, NaN counts as noise.

    A reference of zeros that is not met has -inf. ValueError when the shapes differ.
    """
    return decibels(*energies(reference, value))


def centred_sqnr_db(reference: Floats, value: Floats) -> float:
    """SQNR after each row's own mean is subtracted: an offset common to a row of logits changes no probability."""
    return decibels(*energies(reference, value, centred=True))


def energies(reference: Floats, value: Floats, *, centred: bool = False) -> tuple[float, float]:
    """Sums of squares of reference and error, which add up over pieces; ``centred`` as in ``centred_sqnr_db``."""
    _same_shape(reference, value)
    signal = noise = 0.0
    for left, right in zip(_rows(reference), _rows(value), strict=True):
        exact, got = left.astype(np.float64), right.astype(np.float64)
        if centred:
            exact -= exact.mean(axis=-1, keepdims=True)
            got -= got.mean(axis=-1, keepdims=True)
        signal += float(np.sum(exact * exact))
        error = exact - got
        noise += float(np.sum(error * error)) if np.isfinite(error).all() else math.inf
    return signal, noise


def decibels(signal: float, noise: float) -> float:
    """The ratio of two energies; infinite without noise, -inf without a signal."""
    if noise == 0.0:
        return math.inf
    if signal == 0.0 or math.isinf(noise):
        return -math.inf
    return 10.0 * math.log10(signal / noise)


def mean_kl(reference: Floats, value: Floats) -> float:
    """Mean over positions of KL(softmax(reference) || softmax(value)), in nats."""
    _same_shape(reference, value)
    total = 0.0
    for left, right in zip(_rows(reference), _rows(value), strict=True):
        exact, got = _log_softmax(left), _log_softmax(right)
        total += float(np.sum(np.exp(exact) * (exact - got)))
    return total / _positions(reference)


def top1_agreement(reference: Floats, value: Floats) -> float:
    """Share of positions, 0 to 1, at which both have their maximum at the same token."""
    _same_shape(reference, value)
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(value, axis=-1)))


def mean_nll(logits: Floats, targets: NDArray[np.integer[Any]]) -> float:
    """Mean negative log likelihood, in nats, of `targets` [...], one for each position of `logits` [..., V]."""
    if logits.shape[:-1] != targets.shape:
        raise ValueError(f"logits of shape {logits.shape} have no targets of shape {targets.shape}")
    total, flat, start = 0.0, targets.reshape(-1), 0
    for piece in _rows(logits):
        wanted = flat[start : start + len(piece)]
        total -= float(np.sum(_log_softmax(piece)[np.arange(len(piece)), wanted]))
        start += len(piece)
    return total / flat.size


def perplexity(logits: Floats, targets: NDArray[np.integer[Any]]) -> float:
    """Exp of the mean negative log likelihood; infinite where that is beyond a float."""
    try:
        return math.exp(mean_nll(logits, targets))
    except OverflowError:
        return math.inf


def _log_softmax(rows: Floats) -> NDArray[np.float64]:
    values = rows.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.sum(np.exp(values), axis=-1, keepdims=True))
    return values


def _rows(values: Floats) -> list[Floats]:
    flat = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    return [flat[start : start + _ROWS] for start in range(0, len(flat), _ROWS)]


def _positions(values: Floats) -> int:
    return math.prod(values.shape[:-1])


def _same_shape(reference: Floats, value: Floats) -> None:
    if reference.shape != value.shape:
        raise ValueError(f"shapes {reference.shape} and {value.shape} cannot be compared")
