"""Ranks of the tokens in a float32 row of logits. Pieces for compiled kernels.

A token's rank: larger logits first, of equal ones the lower id. It is held as one integer, the order of the logit in
the upper half, turned round, and the id in the lower.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels.vector import njit

# Logits that share one peak.
CHUNK = 64
# Runs that are sorted instead of split.
SHORT = 16
MINUS_INFINITY = np.int32(-2139095041)  # the order of minus infinity; only a NaN may lie below
INFINITY = np.int32(0x7F800000)


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


@njit(nogil=True, inline="always")
def order_of_rank(rank):  # noqa: ANN001, ANN201 - compiled
    """The upper half, turned back."""
    return np.int64(0x7FFFFFFF) - np.int64(rank >> np.uint64(32))


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


@njit(nogil=True, error_model="numpy")
def split(ranks, low, high):  # noqa: ANN001, ANN201 - compiled
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
    while high - low > SHORT:
        border = split(ranks, low, high)
        if count < border:
            high = border
        elif count > border:
            low = border
        else:
            return
    sort(ranks, low, high)


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
    return max(np.int32(MINUS_INFINITY + 1), np.int32(order_of_rank(last)))


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
