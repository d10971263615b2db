"""Draws tokens from float32 rows of logits on a CPU, and tells log-probabilities. One thread a row, for itself alone.

A draw is the largest of logit / temperature + Gumbel noise among the tokens that pass the filters. The noise is that of
`verify.noise`: a function of a key and the token's id. It is computed only for tokens that can still win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_worker.kernels import ranks as by_rank
from octavo_worker.kernels import team
from octavo_worker.kernels.filters import ALL, UNKNOWN, mass_within, survive
from octavo_worker.kernels.ranks import (
    CHUNK,
    INFINITY,
    MINUS_INFINITY,
    order_of,
    order_of_rank,
    rank_of,
    token_of,
)
from octavo_worker.kernels.vector import as_pointer, carray, fetch_add, njit

_A = team.FIRST_ARGUMENT
(
    ROWS, SIZE, TEMPERATURES, TOP_KS, TOP_PS, MIN_PS, KEYS, TOKENS, TRUSTED,
    SCORES, RANKS, TOTALS, NUM_TOP, NUM_FOUND, TOP_TOKENS, TOP_SCORES, SCRATCH, SCRATCH_BYTES,
) = range(_A, _A + 18)  # fmt: skip
NUM_ARGUMENTS = _A + 18

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Weights are rounded; who is excluded by them must be so by more than that.
_SLACK = np.float32(1.0001)
_NONE = -1


@njit(nogil=True, inline="always")
def _noise_bits(key, token):  # noqa: ANN001, ANN202 - compiled
    bits = key + (np.uint64(token) + np.uint64(1)) * _STEP
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


@njit(nogil=True, error_model="numpy")
def _score(logit, temperature, key, token):  # noqa: ANN001, ANN202 - compiled
    uniform = (np.float64(_noise_bits(key, token) >> np.uint64(11)) + 0.5) * 2.0**-53
    return np.float64(logit) / temperature - math.log(-math.log(uniform))


@njit(nogil=True, inline="always")
def _may_win(key, token, weight, factor):  # noqa: ANN001, ANN202 - compiled
    """Noise -log(-log u) is below -log(1 - u), so a score beats the best one only if 1 - u < weight * factor."""
    complement = ~np.uint32(_noise_bits(key, token) >> np.uint64(32))
    return np.float32(complement) * np.float32(2.0**-32) <= weight * factor


@njit(nogil=True, error_model="numpy")
def _any_may_win(key, first, weights, factor):  # noqa: ANN001, ANN202 - compiled; without branches, for whole vectors
    found = np.int32(0)
    for i in range(len(weights)):
        found |= np.int32(_may_win(key, first + i, weights[i], factor))
    return found != 0


@njit(nogil=True, error_model="numpy")
def _draw(logits, bits, peaks, best, temperature, key, weights, ranks, count, limit):  # noqa: ANN001, ANN202 - compiled
    """The winner among the first ``count`` ranks, or among all tokens up to the last rank."""
    winner = best
    bar = _score(logits[best], temperature, key, best)
    top = np.float64(logits[best]) / temperature
    factor = np.float32(math.exp(top - bar)) * _SLACK
    least = order_of_rank(limit)
    size = len(logits) if count == ALL else count
    for at in range(0, size, CHUNK):
        if count == ALL:
            part = weights[at : min(size, at + CHUNK)]
            if peaks[at // CHUNK] < least or not _any_may_win(key, at, part, factor):
                continue
        for i in range(at, min(size, at + CHUNK)):
            token = i if count == ALL else token_of(ranks[i])
            if token != best and _may_win(key, token, weights[token], factor):
                rank = rank_of(order_of(bits[token]), token)
                score = _score(logits[token], temperature, key, token)
                is_first = rank < rank_of(order_of(bits[winner]), winner)
                if rank <= limit and (score > bar or (score == bar and is_first)):
                    bar, winner = score, token
                    factor = np.float32(math.exp(top - bar)) * _SLACK
    return winner


@njit(nogil=True, error_model="numpy")
def _count_before(bits, token):  # noqa: ANN001, ANN202 - compiled
    order, count = order_of(bits[token]), np.int64(0)
    for i in range(len(bits)):
        count += order_of(bits[i]) > order
    for i in range(token):
        count += order_of(bits[i]) == order
    return count


@njit(nogil=True, error_model="numpy")
def _tell(a, task, logits, bits, best, temperature, peaks, ranks, count, limit, total):  # noqa: ANN001, ANN202 - compiled
    """Log-probability and rank of the task's token, and the most likely ones; all among those that passed."""
    token = carray(as_pointer(a[TOKENS] + 8 * task), (1,), np.int64)[0]
    log_total = np.float64(logits[best]) / temperature + math.log(total)
    carray(as_pointer(a[TOTALS] + 8 * task), (1,), np.float64)[0] = log_total
    if token != _NONE:
        passed = rank_of(order_of(bits[token]), token) <= limit
        score = np.float64(logits[token]) / temperature - log_total if passed else -np.inf
        carray(as_pointer(a[SCORES] + 8 * task), (1,), np.float64)[0] = score
        carray(as_pointer(a[RANKS] + 8 * task), (1,), np.int64)[0] = _count_before(bits, token) + 1
    wanted = a[NUM_TOP]
    if count == ALL and wanted:
        count = by_rank.collect(bits, peaks, by_rank.order_of_first(peaks, wanted, ranks), ranks)
    wanted = min(wanted, count) if wanted else 0
    if wanted:
        by_rank.bring_forward(ranks, count, wanted)
        by_rank.sort(ranks, 0, wanted)
        while ranks[wanted - 1] > limit:
            wanted -= 1
    carray(as_pointer(a[NUM_FOUND] + 8 * task), (1,), np.int64)[0] = wanted
    tokens = carray(as_pointer(a[TOP_TOKENS] + 8 * task * a[NUM_TOP]), (wanted,), np.int64)
    scores = carray(as_pointer(a[TOP_SCORES] + 8 * task * a[NUM_TOP]), (wanted,), np.float64)
    for i in range(wanted):
        tokens[i] = token_of(ranks[i])
        scores[i] = np.float64(logits[tokens[i]]) / temperature - log_total


@njit(nogil=True, error_model="numpy")
def _run_task(a, task, slot):  # noqa: ANN001, ANN202 - compiled
    size = a[SIZE]
    row = carray(as_pointer(a[ROWS] + 8 * task), (1,), np.int64)[0]
    logits, bits = carray(as_pointer(row), (size,), np.float32), carray(as_pointer(row), (size,), np.int32)
    base = a[SCRATCH] + slot * a[SCRATCH_BYTES]
    num_chunks = (size + CHUNK - 1) // CHUNK
    ranks = carray(as_pointer(base), (size,), np.uint64)
    weights = carray(as_pointer(base + 8 * size), (size,), np.float32)
    peaks = carray(as_pointer(base + 12 * size), (num_chunks,), np.int32)
    best_order = by_rank.find_peaks(bits, peaks)
    is_trusted = best_order > MINUS_INFINITY and best_order < INFINITY
    carray(as_pointer(a[TRUSTED] + 8 * task), (1,), np.int64)[0] = is_trusted
    if not is_trusted:
        return
    best = by_rank.first_of(bits, peaks, best_order)
    temperature = carray(as_pointer(a[TEMPERATURES] + 8 * task), (1,), np.float64)[0]
    tells = a[SCORES] != 0
    token = carray(as_pointer(a[TOKENS] + 8 * task), (1,), np.int64)
    if temperature == 0.0:
        token[0] = best
        return
    count, limit, total = survive(
        logits,
        bits,
        peaks,
        logits[best],
        temperature,
        carray(as_pointer(a[TOP_KS] + 8 * task), (1,), np.int64)[0],
        carray(as_pointer(a[TOP_PS] + 8 * task), (1,), np.float64)[0],
        carray(as_pointer(a[MIN_PS] + 8 * task), (1,), np.float64)[0],
        weights,
        ranks,
    )
    if tells:
        if total == UNKNOWN:
            total = mass_within(bits, weights, limit)
        _tell(a, task, logits, bits, best, temperature, peaks, ranks, count, limit, total)
    else:
        key = carray(as_pointer(a[KEYS] + 8 * task), (1,), np.uint64)[0]
        token[0] = _draw(logits, bits, peaks, best, temperature, key, weights, ranks, count, limit)


@team.compiled
def _run(raw) -> None:  # noqa: ANN001 - compiled
    a = carray(raw, (NUM_ARGUMENTS,), np.int64)
    slot = fetch_add(a.ctypes.data + 8 * team.SLOT, 1)
    while True:
        task = fetch_add(a.ctypes.data + 8 * team.NEXT, 1)
        if task >= a[team.NUM_TASKS]:
            break
        _run_task(a, task, slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Temperature and filters of some tasks, one after the other. A temperature of 0 draws the best token."""

    temperatures: np.ndarray  # float64
    top_ks: np.ndarray  # int64, 0 keeps all
    top_ps: np.ndarray  # float64
    min_ps: np.ndarray  # float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Log-probabilities of some tasks, float64; rows that cannot be trusted hold nothing."""

    trusted: np.ndarray  # bool
    # Of the task's token, and its rank from 1 on.
    logprobs: np.ndarray
    ranks: np.ndarray
    # The logarithm of the sum that the weights were divided by.
    totals: np.ndarray
    # The most likely tokens, best first; the first num_top of each row mean something.
    num_top: np.ndarray
    top_tokens: np.ndarray
    top_logprobs: np.ndarray


class LogitKernels:
    """Keeps the work space of the kernels. For one thread."""

    def __init__(self) -> None:
        self._scratch = np.zeros(0, np.uint8)

    def draw(
        self, logits_SV: Tensor, rows: np.ndarray, filters: Filters, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """A token for each task, and whether its logits are finite where it matters.

        ``rows``: index of each task's logits. ``keys``: uint64.
        """
        tokens, trusted = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        self._launch(logits_SV, rows, filters, keys, tokens, trusted)
        return tokens, trusted != 0

    def tell(self, logits_SV: Tensor, rows: np.ndarray, filters: Filters, tokens: np.ndarray, num_top: int) -> Told:
        """Log-probabilities of one token a task (-1 asks for none), int64, and of the most likely ones."""
        count = len(rows)
        trusted, ranks, num_found = (np.zeros(count, np.int64) for _ in range(3))
        scores, totals = np.zeros(count), np.zeros(count)
        top_tokens, top_scores = np.zeros((count, num_top), np.int64), np.zeros((count, num_top))
        outputs = (scores, ranks, totals, num_found, top_tokens, top_scores)
        keys = np.zeros(count, np.uint64)
        self._launch(logits_SV, rows, filters, keys, tokens, trusted, outputs, num_top)
        return Told(
            trusted=trusted != 0,
            logprobs=scores,
            ranks=ranks,
            totals=totals,
            num_top=num_found,
            top_tokens=top_tokens,
            top_logprobs=top_scores,
        )

    def _launch(
        self,
        logits_SV: Tensor,
        rows: np.ndarray,
        filters: Filters,
        keys: np.ndarray,
        tokens: np.ndarray,
        trusted: np.ndarray,
        outputs: tuple[np.ndarray, ...] = (),
        num_top: int = 0,
    ) -> None:
        assert logits_SV.dtype == torch.float32 and logits_SV.stride(1) == 1, "float32, dense rows"
        if not len(rows):
            return
        size = logits_SV.shape[1]
        addresses = logits_SV.data_ptr() + 4 * logits_SV.stride(0) * rows.astype(np.int64)
        num_threads = min(torch.get_num_threads(), len(rows))
        num_bytes = (12 * size + 4 * -(-size // CHUNK) + 127) // 64 * 64
        if self._scratch.nbytes < num_threads * num_bytes:
            self._scratch = np.zeros(num_threads * num_bytes, np.uint8)
        scores, ranks, totals, num_found, top_tokens, top_scores = (
            (part.ctypes.data for part in outputs) if outputs else (0,) * 6
        )
        args = team.Arguments(NUM_ARGUMENTS)
        args.values[:] = (
            *(0, len(rows), 0, addresses.ctypes.data, size),
            *(filters.temperatures.ctypes.data, filters.top_ks.ctypes.data),
            *(filters.top_ps.ctypes.data, filters.min_ps.ctypes.data),
            *(keys.ctypes.data, tokens.ctypes.data, trusted.ctypes.data),
            *(scores, ranks, totals, num_top, num_found, top_tokens, top_scores),
            *(self._scratch.ctypes.data, num_bytes),
        )
        _run.run(args, num_threads)
