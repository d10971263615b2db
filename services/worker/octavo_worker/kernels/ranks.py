"""The first tokens of a float32 row of logits by rank, found without sorting the row. Pieces for compiled kernels.

A token's rank: larger logits first, of equal ones the lower id. It is held as one integer, the order of the logit in
the upper half, turned round, and the id in the lower. Every filter (top-k, top-p, min-p) keeps the first tokens by
rank, so several keep the shortest of the runs. A threshold that is certainly low enough picks candidates, and a
selection among these finds the border.
"""

from __future__ import annotations

import math

import numpy as np

from octavo_worker.kernels.vector import _float_bits as float_bits
from octavo_worker.kernels.vector import exp32, njit

# Logits that share one peak.
CHUNK = 64
# Weights that are summed in float32 before float64 takes over.
_SUM = 1024
# Runs that are sorted instead of split.
_SHORT = 16
MINUS_INFINITY = np.int32(-2139095041)  # the order of minus infinity; only a NaN may lie below
INFINITY = np.int32(0x7F800000)
ALL = -1


@njit(nogil=True, inline="always")
def order_of(bits):  # noqa: ANN001, ANN201 - compiled
    """Bits of a float32 as an integer of the same order; both zeros are equal."""
    found = np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return np.int32(0) if found == np.int32(-1) else found


@njit(nogil=True, inline="always")
def rank_of(order, token):  # noqa: ANN001, ANN201 - compiled
    """The smaller, the likelier."""
    return (np.uint64(np.int64(0x7FFFFFFF) - np.int64(order)) << np.uint64(32)) | np.uint64(token)


@njit(nogil=True, inline="always")
def token_of(rank):  # noqa: ANN001, ANN201 - compiled
    """Inverse of rank_of."""
    return np.int64(rank & np.uint64(0xFFFFFFFF))


@njit(nogil=True, error_model="numpy")
def find_peaks(bits, peaks):  # noqa: ANN001, ANN201 - compiled
    """Order of the largest logit of each chunk; returns the row's, or that of plus infinity if there is a NaN."""
    size = len(bits)
    best, worst = MINUS_INFINITY, INFINITY
    for chunk in range(len(peaks)):
        first = chunk * CHUNK
        high, low = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
        if first + CHUNK <= size:
            for i in range(CHUNK):
                value = order_of(bits[first + i])
                high, low = max(high, value), min(low, value)
        else:
            for i in range(first, size):
                value = order_of(bits[i])
                high, low = max(high, value), min(low, value)
        peaks[chunk] = high
        best, worst = max(best, high), min(worst, low)
    return INFINITY if worst < MINUS_INFINITY else best


@njit(nogil=True, error_model="numpy")
def first_of(bits, peaks, best):  # noqa: ANN001, ANN201 - compiled
    """Lowest id of a logit of this order."""
    for chunk in range(len(peaks)):
        if peaks[chunk] == best:
            for i in range(chunk * CHUNK, min(len(bits), (chunk + 1) * CHUNK)):
                if order_of(bits[i]) == best:
                    return i
    return 0


@njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
def _sum_up(values):  # noqa: ANN001, ANN202 - compiled; the order of the sum is fixed by the length alone
    total = np.float32(0.0)
    for i in range(len(values)):
        total += values[i]
    return total


@njit(nogil=True, error_model="numpy")
def weigh(logits, top, scale, weights):  # noqa: ANN001, ANN201 - compiled
    """Weights exp((logit - top) * scale) of all tokens; returns their sum."""
    total = 0.0
    for first in range(0, len(logits), _SUM):
        last = min(len(logits), first + _SUM)
        for i in range(first, last):
            weights[i] = exp32((logits[i] - top) * scale)
        total += np.float64(_sum_up(weights[first:last]))
    return total


@njit(nogil=True, error_model="numpy")
def _split(ranks, low, high):  # noqa: ANN001, ANN202 - compiled
    """Put no larger ones before no smaller ones in [low, high); returns the border, with something on both sides."""
    middle, last = (low + high) // 2, high - 1
    pivot = max(min(ranks[low], ranks[middle]), min(max(ranks[low], ranks[middle]), ranks[last]))
    # The split below leaves both sides filled only when it begins at its pivot.
    at = low if ranks[low] == pivot else (middle if ranks[middle] == pivot else last)
    ranks[low], ranks[at] = ranks[at], ranks[low]
    i, j = low - 1, high
    while True:
        i += 1
        while ranks[i] < pivot:
            i += 1
        j -= 1
        while ranks[j] > pivot:
            j -= 1
        if i >= j:
            return j + 1
        ranks[i], ranks[j] = ranks[j], ranks[i]


@njit(nogil=True, error_model="numpy")
def sort(ranks, low, high):  # noqa: ANN001, ANN201 - compiled
    """Sort a short run."""
    for i in range(low + 1, high):
        rank, j = ranks[i], i
        while j > low and ranks[j - 1] > rank:
            ranks[j] = ranks[j - 1]
            j -= 1
        ranks[j] = rank


@njit(nogil=True, error_model="numpy")
def bring_forward(ranks, size, count):  # noqa: ANN001, ANN201 - compiled
    """Put the ``count`` smallest of the first ``size`` in front, in any order."""
    low, high = 0, size
    while high - low > _SHORT:
        border = _split(ranks, low, high)
        if count < border:
            high = border
        elif count > border:
            low = border
        else:
            return
    sort(ranks, low, high)


@njit(nogil=True, error_model="numpy")
def _reach(ranks, size, weights, target):  # noqa: ANN001, ANN202 - compiled
    """Put the fewest tokens in front, by rank, whose weights sum up to the target; returns how many."""
    low, high, before = 0, size, 0.0
    while high - low > _SHORT:
        border = _split(ranks, low, high)
        mass = before
        for i in range(low, border):
            mass += np.float64(weights[token_of(ranks[i])])
        if mass >= target:
            high = border
        else:
            low, before = border, mass
    sort(ranks, low, high)
    for i in range(low, high):
        before += np.float64(weights[token_of(ranks[i])])
        if before >= target:
            return i + 1
    return high


@njit(nogil=True, error_model="numpy")
def order_of_first(peaks, count, ranks):  # noqa: ANN001, ANN201 - compiled
    """An order that the first ``count`` tokens reach: so many chunks have a peak as high. Uses ``ranks`` as space."""
    if count > len(peaks):
        return np.int32(MINUS_INFINITY + 1)
    for i in range(len(peaks)):
        ranks[i] = rank_of(peaks[i], 0)
    bring_forward(ranks, len(peaks), count)
    last = np.uint64(0)
    for i in range(count):
        last = max(last, ranks[i])
    # What is forbidden is nobody's first.
    return max(np.int32(MINUS_INFINITY + 1), np.int32(np.int64(0x7FFFFFFF) - np.int64(last >> np.uint64(32))))


@njit(nogil=True, error_model="numpy")
def collect(bits, peaks, bound, ranks):  # noqa: ANN001, ANN201 - compiled
    """Ranks of the tokens whose logit has this order or a higher one; returns how many."""
    count = 0
    for chunk in range(len(peaks)):
        if peaks[chunk] >= bound:
            for i in range(chunk * CHUNK, min(len(bits), (chunk + 1) * CHUNK)):
                order = order_of(bits[i])
                if order >= bound:
                    ranks[count] = rank_of(order, i)
                    count += 1
    return count


@njit(nogil=True, error_model="numpy")
def _order_above(top, temperature, weight):  # noqa: ANN001, ANN202 - compiled
    """An order that every token of this weight or more reaches."""
    border = np.float64(top) + temperature * (math.log(weight) - 1e-3)
    return max(MINUS_INFINITY + 1, order_of(float_bits(np.float32(border - 1e-6 * abs(border)))))


@njit(nogil=True, error_model="numpy")
def _mass(ranks, count, weights):  # noqa: ANN001, ANN202 - compiled
    total = 0.0
    for i in range(count):
        total += np.float64(weights[token_of(ranks[i])])
    return total


@njit(nogil=True, error_model="numpy")
def _take_k(logits, bits, peaks, top, scale, count, weights, ranks):  # noqa: ANN001, ANN202 - compiled
    """Put the first ``count`` tokens in front and weigh them; returns how many there are."""
    found = collect(bits, peaks, order_of_first(peaks, count, ranks), ranks)
    if found > count:
        bring_forward(ranks, found, count)
        found = count
    for i in range(found):
        token = token_of(ranks[i])
        weights[token] = exp32((logits[token] - top) * scale)
    return found


@njit(nogil=True, error_model="numpy")
def _take_mass(bits, peaks, top, temperature, target, spare, weights, ranks):  # noqa: ANN001, ANN202 - compiled
    """Put the fewest tokens in front that reach the target; ``spare`` is what all tokens weigh beyond it."""
    # Few tokens can weigh so much; mostly they are enough. All that are lighter than the last together weigh less
    # than the spare.
    for share in (64.0, 2048.0, np.float64(len(bits))):
        found = collect(bits, peaks, _order_above(top, temperature, spare / share), ranks)
        if share == len(bits) or _mass(ranks, found, weights) >= target:
            break
    return _reach(ranks, found, weights, target)


@njit(nogil=True, error_model="numpy")
def survive(logits, bits, peaks, top, temperature, top_k, top_p, min_p, weights, ranks):  # noqa: ANN001, ANN201 - compiled
    """Put the tokens that pass top-k, then top-p of what is left, then min-p in front; returns (how many, weight).

    (ALL, weight) when nothing is filtered: then ``ranks`` holds nothing. Tokens at minus infinity never pass.
    """
    scale = np.float32(min(1.0 / temperature, 1e30))
    if 0 < top_k < len(logits):
        count = _take_k(logits, bits, peaks, top, scale, top_k, weights, ranks)
        if top_p < 1.0:
            count = _reach(ranks, count, weights, top_p * _mass(ranks, count, weights))
    else:
        total = weigh(logits, top, scale, weights)
        if top_p < 1.0:
            target = top_p * total
            count = _take_mass(bits, peaks, top, temperature, target, total - target, weights, ranks)
        elif min_p > 0.0:
            count = collect(bits, peaks, _order_above(top, temperature, min_p), ranks)
        else:
            return ALL, total
    if min_p > 0.0:
        border, kept = np.float64(top) + temperature * math.log(min_p), 0
        for i in range(count):
            if np.float64(logits[token_of(ranks[i])]) >= border:
                ranks[kept], kept = ranks[i], kept + 1
        count = kept
    return count, _mass(ranks, count, weights)
