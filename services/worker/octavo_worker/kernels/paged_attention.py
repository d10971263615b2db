"""Causal attention over paged keys and values on a CPU, float32, for any mix of decode rows and prompt chunks.

T fed tokens, N query heads, G key-value heads, H head dim. A task is one tile (16 neighbouring (token, head) pairs of
one row) for one key-value head: decode rows and chunks are the same case, and every pair's sums run over dims and keys
in rising order, so a token's result depends on nothing but its own query and the keys that it sees.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.vector import (
    LANES,
    add_values_by_1,
    add_values_by_4,
    as_pointer,
    carray,
    exp32,
    fetch_add,
    njit,
    prefetch,
    score_keys,
)

_A = team.FIRST_ARGUMENT
(
    Q, Q_TOKEN, Q_HEAD, KV, BLOCK_STRIDE, KEY_AT, VALUE_AT, KEY_STRIDE, HEAD_DIM, GROUP, NUM_KV_HEADS, BLOCK_SIZE,
    TILES, TABLES, TABLE_STRIDE, LIMITS, OUT, OUT_TOKEN, OUT_HEAD, SCRATCH, SCRATCH_STRIDE, SCALE,
) = range(_A, _A + 22)  # fmt: skip
NUM_ARGUMENTS = _A + 22
TILE_FIELDS = 4  # row of the block tables, first fed token, first pair counted from it, number of pairs


def scratch_floats(max_keys: int, head_dim: int) -> int:
    """Floats of work space that one thread needs for sequences of up to max_keys tokens."""
    return LANES * (2 * head_dim + max_keys + 2)


@njit(nogil=True, error_model="numpy")
def _load_queries(a, tile, head, queries, limits, lane_limits):  # noqa: ANN001, ANN202 - compiled, int64 throughout
    """Transpose a tile's queries to [head_dim, lane], scaled; returns the longest of the lanes' visible lengths."""
    head_dim, group = a[HEAD_DIM], a[GROUP]
    q = carray(as_pointer(a[Q]), (1 << 40,), np.float32)
    scale = np.float32(a[SCALE] * 2.0**-32)
    longest = np.int64(0)
    for lane in range(LANES):
        pair = tile[2] + lane
        if lane < tile[3]:
            token = np.int64(tile[1]) + pair // group
            at = token * a[Q_TOKEN] + (head * group + pair % group) * a[Q_HEAD]
            for d in range(head_dim):
                queries[d * LANES + lane] = q[at + d] * scale
            lane_limits[lane] = limits[token]
            longest = max(longest, np.int64(limits[token]))
        else:
            for d in range(head_dim):
                queries[d * LANES + lane] = np.float32(0.0)
            lane_limits[lane] = 0
    return longest


@njit(nogil=True, error_model="numpy")
def _softmax(scores, lane_limits, shortest, longest, peaks, sums):  # noqa: ANN001, ANN202 - compiled
    """Turn scores [key, lane] into unnormalised weights, lane by lane; keys a lane does not see get weight 0."""
    for lane in range(LANES):
        peaks[lane] = -np.inf
        sums[lane] = np.float32(0.0)
    for s in range(shortest):
        for lane in range(LANES):
            value = scores[s * LANES + lane]
            peaks[lane] = peaks[lane] if value < peaks[lane] else value
    for s in range(shortest, longest):
        for lane in range(LANES):
            if s < lane_limits[lane]:
                value = scores[s * LANES + lane]
                peaks[lane] = peaks[lane] if value < peaks[lane] else value
    for s in range(shortest):
        for lane in range(LANES):
            weight = exp32(scores[s * LANES + lane] - peaks[lane])
            scores[s * LANES + lane] = weight
            sums[lane] += weight
    for s in range(shortest, longest):
        for lane in range(LANES):
            weight = np.float32(0.0)
            if s < lane_limits[lane]:
                weight = exp32(scores[s * LANES + lane] - peaks[lane])
            scores[s * LANES + lane] = weight
            sums[lane] += weight


@njit(nogil=True, error_model="numpy")
def _prefetch(start, a):  # noqa: ANN001, ANN202 - compiled
    """Ask for one head's part of a page: the hardware does not guess the jump from page to page."""
    for row in range(a[BLOCK_SIZE]):
        for line in range(0, 4 * a[HEAD_DIM], 64):
            prefetch(start + 4 * row * a[KEY_STRIDE] + line)


@njit(nogil=True, error_model="numpy")
def _attend_tile(a, tile, head, slot):  # noqa: ANN001, ANN202 - compiled
    """One task: scores page by page, softmax, weighted values page by page, then the division by the sum."""
    head_dim, block_size, stride = a[HEAD_DIM], a[BLOCK_SIZE], a[KEY_STRIDE]
    base = a[SCRATCH] + 4 * slot * a[SCRATCH_STRIDE]
    scratch = carray(as_pointer(base), (a[SCRATCH_STRIDE],), np.float32)
    queries, peaks = scratch[: LANES * head_dim], scratch[LANES * head_dim : LANES * (head_dim + 1)]
    sums = scratch[LANES * (head_dim + 1) : LANES * (head_dim + 2)]
    results_at = LANES * (head_dim + 2)
    scores_at = results_at + LANES * head_dim
    results, scores = scratch[results_at:scores_at], scratch[scores_at:]
    limits = carray(as_pointer(a[LIMITS]), (1 << 40,), np.int32)
    lane_limits = np.zeros(LANES, np.int32)
    longest = _load_queries(a, tile, head, queries, limits, lane_limits)
    shortest = longest
    for lane in range(tile[3]):
        shortest = min(shortest, np.int64(lane_limits[lane]))
    table = carray(as_pointer(a[TABLES] + 4 * tile[0] * a[TABLE_STRIDE]), (a[TABLE_STRIDE],), np.int32)
    num_pages = (longest + block_size - 1) // block_size
    for page in range(num_pages):
        keys = a[KV] + 4 * (np.int64(table[page]) * a[BLOCK_STRIDE] + a[KEY_AT] + head * head_dim)
        num_keys = min(block_size, (longest - page * block_size + 7) // 8 * 8)
        if page + 1 < num_pages:
            _prefetch(a[KV] + 4 * (np.int64(table[page + 1]) * a[BLOCK_STRIDE] + a[KEY_AT] + head * head_dim), a)
        score_keys(base, keys, stride, num_keys, head_dim, base + 4 * (scores_at + page * block_size * LANES))
    _softmax(scores, lane_limits, shortest, longest, peaks, sums)
    results[:] = np.float32(0.0)
    for page in range(num_pages):
        values = a[KV] + 4 * (np.int64(table[page]) * a[BLOCK_STRIDE] + a[VALUE_AT] + head * head_dim)
        num_keys = min(block_size, longest - page * block_size)
        if page + 1 < num_pages:
            _prefetch(a[KV] + 4 * (np.int64(table[page + 1]) * a[BLOCK_STRIDE] + a[VALUE_AT] + head * head_dim), a)
        weights = base + 4 * (scores_at + page * block_size * LANES)
        for lane in range(0, tile[3], 2):
            to = base + 4 * (results_at + lane * head_dim)
            if head_dim % (4 * LANES) == 0:
                add_values_by_4(weights + 4 * lane, values, stride, num_keys, head_dim // LANES, to)
            else:
                add_values_by_1(weights + 4 * lane, values, stride, num_keys, head_dim // LANES, to)
    out = carray(as_pointer(a[OUT]), (1 << 40,), np.float32)
    for lane in range(tile[3]):
        pair = tile[2] + lane
        token = np.int64(tile[1]) + pair // a[GROUP]
        at = token * a[OUT_TOKEN] + (head * a[GROUP] + pair % a[GROUP]) * a[OUT_HEAD]
        for d in range(head_dim):
            out[at + d] = results[lane * head_dim + d] / sums[lane]


@team.compiled
def attend(raw) -> None:  # noqa: ANN001 - compiled
    """Attention of all fed tokens in one layer."""
    a = carray(raw, (NUM_ARGUMENTS,), np.int64)
    address = a.ctypes.data
    slot = fetch_add(address + 8 * team.SLOT)
    while True:
        task = fetch_add(address + 8 * team.NEXT)
        if task >= a[team.NUM_TASKS]:
            break
        number = task // a[NUM_KV_HEADS]
        tile = carray(as_pointer(a[TILES] + 4 * TILE_FIELDS * number), (TILE_FIELDS,), np.int32)
        _attend_tile(a, tile, task % a[NUM_KV_HEADS], slot)


(
    W_K, W_V, W_TOKEN, W_HEAD, W_KV, W_BLOCK_STRIDE, W_KEY_AT, W_VALUE_AT, W_KEY_STRIDE,
    W_HEADS, W_DIM, W_BLOCK, W_SLOTS, W_T,
) = range(_A, _A + 14)  # fmt: skip
NUM_WRITE_ARGUMENTS = _A + 14


@team.compiled
def write(raw) -> None:  # noqa: ANN001 - compiled
    """Copy keys and values of fed tokens to their slots; a task is 16 tokens."""
    a = carray(raw, (NUM_WRITE_ARGUMENTS,), np.int64)
    k = carray(as_pointer(a[W_K]), (1 << 40,), np.float32)
    v = carray(as_pointer(a[W_V]), (1 << 40,), np.float32)
    kv = carray(as_pointer(a[W_KV]), (1 << 40,), np.float32)
    slots = carray(as_pointer(a[W_SLOTS]), (a[W_T],), np.int64)
    dim = a[W_DIM]
    while True:
        task = fetch_add(a.ctypes.data + 8 * team.NEXT)
        if task >= a[team.NUM_TASKS]:
            break
        for t in range(task * 16, min(a[W_T], (task + 1) * 16)):
            block, offset = slots[t] // a[W_BLOCK], slots[t] % a[W_BLOCK]
            to = block * a[W_BLOCK_STRIDE] + offset * a[W_KEY_STRIDE]
            for head in range(a[W_HEADS]):
                source = t * a[W_TOKEN] + head * a[W_HEAD]
                for d in range(dim):
                    kv[to + a[W_KEY_AT] + head * dim + d] = k[source + d]
                    kv[to + a[W_VALUE_AT] + head * dim + d] = v[source + d]
