"""Which tokens of a float32 row of logits pass temperature, top-k, top-p and min-p. Pieces for compiled kernels.

Every filter keeps the first tokens by rank, so several keep the shortest of the runs. It is found without sorting the
row: a threshold that is certainly low enough picks candidates, and a selection among these finds the border. Where
many pass, sums over ranges of logits find the range that the border lies in.
"""

from __future__ import annotations

import math

import numpy as np

from octavo_worker.kernels.ranks import (
    MINUS_INFINITY,
    SHORT,
    bring_forward,
    collect,
    order_of,
    order_of_first,
    rank_of,
    sort,
    split,
    token_of,
)
from octavo_worker.kernels.vector import _float_bits as float_bits
from octavo_worker.kernels.vector import exp32, njit

# Weights that are summed in float32 before float64 takes over.
_SUM = 1024
# Ranges of logits that are summed up when many tokens pass.
_BUCKETS = 1024
ALL = -1
NO_LIMIT = np.uint64(0xFFFFFFFFFFFFFFFF)
UNKNOWN = -1.0


@njit(nogil=True, error_model="numpy", fastmath={"reassoc"})
def _sum_up(values):  # noqa: ANN001, ANN202 - compiled; the order of the sum is fixed by the length alone
    total = np.float32(0.0)
    for i in range(len(values)):
        total += values[i]
    return total


@njit(nogil=True, error_model="numpy")
def _weigh_part(logits, top, scale, weights):  # noqa: ANN001, ANN202 - compiled; whole slices become whole vectors
    for i in range(len(weights)):
        weights[i] = exp32((logits[i] - top) * scale)


@njit(nogil=True, error_model="numpy")
def weigh(logits, top, scale, weights):  # noqa: ANN001, ANN201 - compiled
    """Weights exp((logit - top) * scale) of all tokens; returns their sum."""
    total = 0.0
    for first in range(0, len(logits), _SUM):
        last = min(len(logits), first + _SUM)
        _weigh_part(logits[first:last], top, scale, weights[first:last])
        total += np.float64(_sum_up(weights[first:last]))
    return total


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
def _reach(ranks, size, weights, target):  # noqa: ANN001, ANN202 - compiled
    """Put the fewest tokens in front, by rank, whose weights sum up to the target; returns how many."""
    low, high, before = 0, size, 0.0
    while high - low > SHORT:
        border = split(ranks, low, high)
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
    """Put the fewest tokens in front that reach the target, or return ALL if they are many.

    ``spare`` is what all tokens weigh beyond the target.
    """
    # Few tokens can weigh so much; mostly they are enough.
    for share in (64.0, 2048.0):
        found = collect(bits, peaks, _order_above(top, temperature, spare / share), ranks)
        if _mass(ranks, found, weights) >= target:
            return _reach(ranks, found, weights, target)
    return ALL


@njit(nogil=True, inline="always")
def _bucket(logit, top, scale):  # noqa: ANN001, ANN202 - compiled
    """Whatever the numbers are, NaN too, it is a bucket that there is: places are written by it unchecked."""
    depth = (top - logit) * scale
    return np.int64(max(depth, np.float32(0.0))) if depth < np.float32(_BUCKETS - 1) else np.int64(_BUCKETS - 1)


@njit(nogil=True, error_model="numpy")
def _find_limit(logits, bits, top, width, weights, counts, target, ranks):  # noqa: ANN001, ANN202 - compiled
    """Rank of the last of the fewest tokens that reach the target, in number or by weight.

    ``width``: how far below the top logit it lies at most; only time depends on that.
    """
    scale, sums = np.float32(_BUCKETS / width), np.zeros(_BUCKETS, np.float64)
    for i in range(len(logits)):
        sums[_bucket(logits[i], top, scale)] += np.float64(1.0) if counts else np.float64(weights[i])
    before, last = 0.0, 0
    while last < _BUCKETS - 1 and before + sums[last] < target:
        before += sums[last]
        last += 1
    found = 0
    for i in range(len(logits)):
        if _bucket(logits[i], top, scale) == last:
            ranks[found] = rank_of(order_of(bits[i]), i)
            found += 1
    if counts:
        kept = np.int64(target - before)
        bring_forward(ranks, found, kept)
    else:
        kept = _reach(ranks, found, weights, target - before)
    limit = np.uint64(0) if kept else NO_LIMIT
    for i in range(kept):
        limit = max(limit, ranks[i])
    return limit


@njit(nogil=True, error_model="numpy")
def mass_within(bits, weights, limit):  # noqa: ANN001, ANN201 - compiled
    """What the tokens up to a rank weigh."""
    total = 0.0
    for i in range(len(bits)):
        if rank_of(order_of(bits[i]), i) <= limit:
            total += np.float64(weights[i])
    return total


@njit(nogil=True, error_model="numpy")
def _limit_of_min_p(top, temperature, min_p):  # noqa: ANN001, ANN202 - compiled
    """The last rank that a logit of at least min_p times the best one's probability may have."""
    border = np.float64(top) + temperature * math.log(min_p)
    nearest = np.float32(border)
    order = np.int64(order_of(float_bits(nearest)))
    return rank_of(order + 1 if np.float64(nearest) < border else order, 0xFFFFFFFF)


@njit(nogil=True, error_model="numpy")
def survive(logits, bits, peaks, top, temperature, top_k, top_p, min_p, weights, ranks):  # noqa: ANN001, ANN201 - compiled, one filter after the other
    """Top-k, then top-p of what is left, then min-p; returns (how many, last rank, weight).

    Few that pass are put in front of ``ranks``. Many are ALL those up to the last rank, and all ``weights`` hold;
    their own weight may be UNKNOWN. Tokens at minus infinity may pass, but weigh nothing.
    """
    scale = np.float32(min(1.0 / temperature, 1e30))
    takes_k = 0 < top_k < len(logits)
    count, limit, total = ALL, NO_LIMIT, UNKNOWN
    if takes_k and top_k <= len(peaks):
        count = _take_k(logits, bits, peaks, top, scale, top_k, weights, ranks)
        if top_p < 1.0:
            count = _reach(ranks, count, weights, top_p * _mass(ranks, count, weights))
    else:
        total = weigh(logits, top, scale, weights)
        if takes_k:
            limit = _find_limit(logits, bits, top, 64.0, weights, True, np.float64(top_k), ranks)
            total = mass_within(bits, weights, limit)
        if top_p < 1.0:
            target = top_p * total
            spare = total - target
            count = _take_mass(bits, peaks, top, temperature, target, spare, weights, ranks)
            if count == ALL:
                # All tokens that are lighter together weigh less than what is left out.
                width = 1.0 - temperature * math.log(spare / len(logits))
                limit = _find_limit(logits, bits, top, width, weights, False, target, ranks)
            total = UNKNOWN
        elif min_p > 0.0 and not takes_k:
            count = collect(bits, peaks, _order_above(top, temperature, min_p), ranks)
    if min_p > 0.0:
        last, kept = _limit_of_min_p(top, temperature, min_p), 0
        limit, total = min(limit, last), UNKNOWN
        for i in range(count):
            if ranks[i] <= last:
                ranks[kept], kept = ranks[i], kept + 1
        count = kept if count != ALL else ALL
    if count != ALL:
        limit, total = np.uint64(0), _mass(ranks, count, weights)
        for i in range(count):
            limit = max(limit, ranks[i])
    return count, limit, total
