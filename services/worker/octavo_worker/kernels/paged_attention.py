"""Causal attention over paged keys and values on a CPU, float32, for any mix of decode rows and prompt chunks.

T fed tokens, N query heads, G key-value heads, H head dim. A task is one tile (16 neighbouring (token, head) pairs of
one row) for one key-value head: decode rows and chunks are the same case, and every pair's sums run over dims and keys
in rising order, so a token's result depends on nothing but its own query and the keys that it sees: those before its
limit, and not more than the window. Pages that lie wholly before the windows of a tile are not touched.
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
    score_keys,
)

_A = team.FIRST_ARGUMENT
(
    Q, Q_TOKEN, Q_HEAD, K, V, K_TOKEN, K_HEAD, NUM_TOKENS, SLOTS,
    KV, BLOCK_STRIDE, KEY_AT, VALUE_AT, KEY_STRIDE, HEAD_DIM, GROUP, NUM_KV_HEADS, HEADS_AT_ONCE, BLOCK_SIZE,
    TILES, TABLES, TABLE_STRIDE, LIMITS, OUT, OUT_TOKEN, OUT_HEAD, SCRATCH, SCRATCH_STRIDE, SCALE,
    NUM_WRITES, NUM_WRITTEN, WINDOW,
) = range(_A, _A + 32)  # fmt: skip
NUM_ARGUMENTS = _A + 32
TILE_FIELDS = 4  # row of the block tables, first fed token, first pair counted from it, number of pairs
TOKENS_PER_WRITE = 16


def scratch_floats(max_keys: int, head_dim: int) -> int:
    """Floats of work space that one thread needs for one head and sequences of up to max_keys tokens."""
    return LANES * (2 * head_dim + max_keys + 2)


@njit(nogil=True, error_model="numpy")
def _load_queries(a, tile, head, queries, limits, lane_limits):  # noqa: ANN001, ANN202 - compiled, int64 throughout
    """Transpose a tile's queries to [head_dim, lane], scaled; returns the longest of the lanes' visible lengths.

    Lanes beyond the tile keep what an earlier one left: nobody reads what becomes of them.
    """
    head_dim, group = a[HEAD_DIM], a[GROUP]
    q = carray(as_pointer(a[Q]), (1 << 40,), np.float32)
    scale = np.float32(a[SCALE] * 2.0**-32)
    longest = np.int64(0)
    for lane in range(tile[3]):
        pair = tile[2] + lane
        token = np.int64(tile[1]) + pair // group
        at = token * a[Q_TOKEN] + (head * group + pair % group) * a[Q_HEAD]
        for d in range(head_dim):
            queries[d * LANES + lane] = q[at + d] * scale
        lane_limits[lane] = limits[token]
        longest = max(longest, np.int64(limits[token]))
    return longest


def _make_softmax(width):  # noqa: ANN001, ANN202, C901 - a constant width lets the compiler use whole vectors
    @njit(nogil=True, error_model="numpy")
    def softmax(scores, lane_limits, window, first, shared, shortest, longest, peaks, sums):  # noqa: ANN001, ANN202, C901 - one range of keys after the other
        # Indices that count from 0 are known not to be negative, without which nothing becomes vectors.
        behind = max(shared, shortest)
        low, high = scores[first * LANES : shared * LANES], scores[behind * LANES : longest * LANES]
        open_to_all = scores[shared * LANES : behind * LANES]
        for lane in range(width):
            peaks[lane] = -np.inf
            sums[lane] = np.float32(0.0)
        for s in range(shared - first):
            for lane in range(width):
                if lane_limits[lane] - window <= first + s < lane_limits[lane]:
                    value = low[s * LANES + lane]
                    peaks[lane] = peaks[lane] if value < peaks[lane] else value
        for s in range(behind - shared):
            for lane in range(width):
                value = open_to_all[s * LANES + lane]
                peaks[lane] = peaks[lane] if value < peaks[lane] else value
        for s in range(longest - behind):
            for lane in range(width):
                if behind + s < lane_limits[lane]:
                    value = high[s * LANES + lane]
                    peaks[lane] = peaks[lane] if value < peaks[lane] else value
        for s in range(shared - first):
            for lane in range(width):
                weight = np.float32(0.0)
                if lane_limits[lane] - window <= first + s < lane_limits[lane]:
                    weight = exp32(low[s * LANES + lane] - peaks[lane])
                low[s * LANES + lane] = weight
                sums[lane] += weight
        for s in range(behind - shared):
            for lane in range(width):
                weight = exp32(open_to_all[s * LANES + lane] - peaks[lane])
                open_to_all[s * LANES + lane] = weight
                sums[lane] += weight
        for s in range(longest - behind):
            for lane in range(width):
                weight = np.float32(0.0)
                if behind + s < lane_limits[lane]:
                    weight = exp32(high[s * LANES + lane] - peaks[lane])
                high[s * LANES + lane] = weight
                sums[lane] += weight

    return softmax


# Turn scores [key, lane] of the keys [first, longest) into unnormalised weights, lane by lane; keys that a lane does
# not see get weight 0. From `shared` on no lane's window hides a key; below `shortest` no lane's limit does.
_softmax_4, _softmax_8, _softmax_16 = _make_softmax(4), _make_softmax(8), _make_softmax(16)


@njit(nogil=True, error_model="numpy")
def _page(a, table, page, at, head):  # noqa: ANN001, ANN202 - compiled
    """Address of one head's keys (at = KEY_AT) or values (VALUE_AT) in a page of the row."""
    return a[KV] + 4 * (np.int64(table[page]) * a[BLOCK_STRIDE] + a[at] + head * a[HEAD_DIM])


@njit(nogil=True, error_model="numpy")
def _attend_tile(a, tile, first_head, num_heads, slot):  # noqa: ANN001, ANN202, C901 - one pass after the other
    """Some heads of one tile: scores page by page, softmax, weighted values page by page, division by the sum.

    Page by page for all heads, because their keys of one page lie together.
    """
    head_dim, block_size, stride = a[HEAD_DIM], a[BLOCK_SIZE], a[KEY_STRIDE]
    base = a[SCRATCH] + 4 * slot * a[SCRATCH_STRIDE]
    scratch = carray(as_pointer(base), (a[SCRATCH_STRIDE],), np.float32)
    limits = carray(as_pointer(a[LIMITS]), (1 << 40,), np.int32)
    table = carray(as_pointer(a[TABLES] + 4 * tile[0] * a[TABLE_STRIDE]), (a[TABLE_STRIDE],), np.int32)
    lane_limits = np.zeros(LANES, np.int32)
    longest = np.int64(0)
    size = a[SCRATCH_STRIDE] // a[HEADS_AT_ONCE]
    sums_at, results_at = LANES * (head_dim + 1), LANES * (head_dim + 2)
    scores_at = results_at + LANES * head_dim
    for index in range(num_heads):
        longest = _load_queries(a, tile, first_head + index, scratch[index * size :], limits, lane_limits)
    shortest = longest
    for lane in range(tile[3]):
        shortest = min(shortest, np.int64(lane_limits[lane]))
    num_pages = (longest + block_size - 1) // block_size
    first_page = max(0, shortest - a[WINDOW]) // block_size
    shared = max(0, longest - a[WINDOW])
    begin = _page(a, table, first_page, VALUE_AT, 0)
    for page in range(first_page, num_pages):
        num_keys = min(block_size, (longest - page * block_size + 7) // 8 * 8)
        # The hardware does not guess the jump from page to page.
        following = _page(a, table, page + 1, KEY_AT, 0) if page + 1 < num_pages else begin
        for index in range(num_heads):
            mine = base + 4 * index * size
            keys = _page(a, table, page, KEY_AT, first_head + index)
            scores_to = mine + 4 * (scores_at + page * block_size * LANES)
            ahead = following + 4 * index * block_size * head_dim
            score_keys(mine, keys, stride, num_keys, head_dim, scores_to, ahead)
    for index in range(num_heads):
        scores = scratch[index * size + scores_at : (index + 1) * size]
        peaks = scratch[index * size + LANES * head_dim : index * size + sums_at]
        sums = scratch[index * size + sums_at : index * size + results_at]
        first = first_page * block_size
        if tile[3] <= 4:
            _softmax_4(scores, lane_limits, a[WINDOW], first, shared, shortest, longest, peaks, sums)
        elif tile[3] <= 8:
            _softmax_8(scores, lane_limits, a[WINDOW], first, shared, shortest, longest, peaks, sums)
        else:
            _softmax_16(scores, lane_limits, a[WINDOW], first, shared, shortest, longest, peaks, sums)
        scratch[index * size + results_at : index * size + scores_at] = np.float32(0.0)
    for page in range(first_page, num_pages):
        num_keys = min(block_size, longest - page * block_size)
        following = _page(a, table, min(page + 1, num_pages - 1), VALUE_AT, 0)
        for index in range(num_heads):
            mine = base + 4 * index * size
            values = _page(a, table, page, VALUE_AT, first_head + index)
            weights = mine + 4 * (scores_at + page * block_size * LANES)
            ahead = following + 4 * index * block_size * head_dim
            for lane in range(0, tile[3], 2):
                to = mine + 4 * (results_at + lane * head_dim)
                if head_dim % (4 * LANES) == 0:
                    add_values_by_4(weights + 4 * lane, values, stride, num_keys, head_dim // LANES, to, ahead)
                else:
                    add_values_by_1(weights + 4 * lane, values, stride, num_keys, head_dim // LANES, to, ahead)
    for index in range(num_heads):
        results = scratch[index * size + results_at : index * size + scores_at]
        _store(a, tile, first_head + index, results, scratch[index * size + sums_at : index * size + results_at])


@njit(nogil=True, error_model="numpy")
def _store(a, tile, head, results, sums):  # noqa: ANN001, ANN202 - compiled
    """Divide by the sums of the weights and put the results in their places."""
    out = carray(as_pointer(a[OUT]), (1 << 40,), np.float32)
    for lane in range(tile[3]):
        pair = tile[2] + lane
        token = np.int64(tile[1]) + pair // a[GROUP]
        at = token * a[OUT_TOKEN] + (head * a[GROUP] + pair % a[GROUP]) * a[OUT_HEAD]
        for d in range(a[HEAD_DIM]):
            out[at + d] = results[lane * a[HEAD_DIM] + d] / sums[lane]


@njit(nogil=True, error_model="numpy")
def _write(a, first, last):  # noqa: ANN001, ANN202 - compiled
    """Copy keys and values of some fed tokens to their slots."""
    k = carray(as_pointer(a[K]), (1 << 40,), np.float32)
    v = carray(as_pointer(a[V]), (1 << 40,), np.float32)
    kv = carray(as_pointer(a[KV]), (1 << 40,), np.float32)
    slots = carray(as_pointer(a[SLOTS]), (a[NUM_TOKENS],), np.int64)
    dim = a[HEAD_DIM]
    for t in range(first, last):
        block, offset = slots[t] // a[BLOCK_SIZE], slots[t] % a[BLOCK_SIZE]
        to = block * a[BLOCK_STRIDE] + offset * a[KEY_STRIDE]
        for head in range(a[NUM_KV_HEADS]):
            source = t * a[K_TOKEN] + head * a[K_HEAD]
            for d in range(dim):
                kv[to + a[KEY_AT] + head * dim + d] = k[source + d]
                kv[to + a[VALUE_AT] + head * dim + d] = v[source + d]


@team.compiled
def attend(raw) -> None:  # noqa: ANN001 - compiled
    """One layer: put the fed tokens' keys and values into their slots, then attend.

    The first tasks write. They are drawn before all others, so whoever draws another one waits for threads at work.
    """
    a = carray(raw, (NUM_ARGUMENTS,), np.int64)
    address = a.ctypes.data
    slot = fetch_add(address + 8 * team.SLOT, 1)
    written = False
    heads_at_once = a[HEADS_AT_ONCE]
    parts = a[NUM_KV_HEADS] // heads_at_once
    while True:
        task = fetch_add(address + 8 * team.NEXT, 1)
        if task >= a[team.NUM_TASKS]:
            break
        if task < a[NUM_WRITES]:
            _write(a, task * TOKENS_PER_WRITE, min(a[NUM_TOKENS], (task + 1) * TOKENS_PER_WRITE))
            fetch_add(address + 8 * NUM_WRITTEN, 1)
            continue
        while not written:
            written = fetch_add(address + 8 * NUM_WRITTEN, 0) == a[NUM_WRITES]
        task -= a[NUM_WRITES]
        tile = carray(as_pointer(a[TILES] + 4 * TILE_FIELDS * (task // parts)), (TILE_FIELDS,), np.int32)
        _attend_tile(a, tile, task % parts * heads_at_once, heads_at_once, slot)
