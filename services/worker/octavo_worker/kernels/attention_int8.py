"""Causal attention over pages of int8 keys and values, for any mix of decode rows and prompt chunks: one stage a layer.

T fed tokens, N query heads, G key-value heads, H head dim. A task is one tile (16 neighbouring (token, head) pairs of
one row) for one key-value head. Sums over dims are exact; those over keys run in an order that the keys' positions
alone give. So a token's result depends on nothing but its own query and the keys that it sees.

A block of the pool holds, for each layer, the keys of its 16 tokens [G, 16 H bytes], then the values [G, 16 H bytes];
behind all layers, for each layer, the keys' scales [G, 16] and the values' scales [G, 16], float32.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.kv_int8 import (
    PAGE,
    make_add_page,
    make_score_page,
    put_head,
    scale_weights,
    split_query,
    weigh,
)
from octavo_worker.kernels.program import FIRST_OWN, FRAME, FRAME_VALUES, ROWS, Stage
from octavo_worker.kernels.vector import LANES, as_pointer, carray, fetch_add, njit

# Own arguments.
(
    QKV, QKV_STRIDE, POOL, BLOCK_BYTES, KEYS_AT, SCALES_AT, HEAD_DIM, NUM_KV_HEADS, PAIRS_A_TOKEN, OUT, OUT_STRIDE,
    SCALE, WINDOW,
) = range(FIRST_OWN, FIRST_OWN + 13)  # fmt: skip
_NUM_ARGUMENTS = FIRST_OWN + 13
# Of the frame: what a step's plan says, the same for all layers.
TILES, NUM_TILES, TABLES, TABLE_STRIDE, LIMITS, SLOTS, SCRATCH, SCRATCH_BYTES, HEADS_AT_ONCE = range(2, 11)
assert HEADS_AT_ONCE < FRAME_VALUES
# A tile: row of the block tables, first fed token, first pair counted from it, number of pairs.
TILE_FIELDS, TILE_PAIRS = 4, 16
_TOKENS_PER_WRITE = 16
# Counts the writing tasks that are done; programs set it to 0 before they run.
_WRITTEN = team.NUM_TASKS
# The hardware does not guess the jump from page to page, and memory takes longer than the work on one.
_PAGES_AHEAD = 3

_score_4, _score_3, _score_2, _score_1 = (make_score_page(n) for n in (4, 3, 2, 1))
_add_4, _add_3, _add_2, _add_1 = (make_add_page(n, 4) for n in (4, 3, 2, 1))
_narrow_4, _narrow_3, _narrow_2, _narrow_1 = (make_add_page(n, 1) for n in (4, 3, 2, 1))


def heads_at_once(num_tiles: int, num_kv_heads: int, num_threads: int) -> int:
    """Heads of a task: all, since a page's parts lie together, unless threads would get too little to do."""
    return num_kv_heads if num_tiles >= 4 * num_threads else 1


def scratch_bytes(max_keys: int, head_dim: int) -> int:
    """Work space that a thread needs for one head of sequences of up to max_keys tokens: a multiple of 64."""
    num_pages = -(-max_keys // PAGE)
    # Queries' two bytes a dim, three words a query, scores, results.
    return -(-TILE_PAIRS * (2 * head_dim + 12 + 4 * PAGE * num_pages + 4 * head_dim) // 64) * 64


def layer_bytes(num_kv_heads: int, head_dim: int) -> int:
    """Keys and values of a block in one layer, without their scales."""
    return 2 * PAGE * num_kv_heads * head_dim


def layer_scale_bytes(num_kv_heads: int) -> int:
    """Their scales."""
    return 2 * PAGE * num_kv_heads * 4


@njit(nogil=True, error_model="numpy")
def _write(a, slots, first, last):  # noqa: ANN001, ANN202 - compiled
    """Quantise keys and values of some fed tokens into their slots."""
    heads, dim = a[NUM_KV_HEADS], a[HEAD_DIM]
    num_q = heads * a[PAIRS_A_TOKEN]
    for t in range(first, last):
        block, offset = a[POOL] + slots[t] // PAGE * a[BLOCK_BYTES], slots[t] % PAGE
        row = a[QKV] + 4 * t * a[QKV_STRIDE]
        for head in range(heads):
            keys, scales = block + a[KEYS_AT] + head * PAGE * dim, block + a[SCALES_AT] + 4 * (head * PAGE + offset)
            put_head(row + 4 * (num_q + head) * dim, dim, keys + 4 * offset, 4 * PAGE, 128, scales)
            values, scales = keys + heads * PAGE * dim, scales + 4 * heads * PAGE
            put_head(row + 4 * (num_q + heads + head) * dim, dim, values + offset * dim, 4, 0, scales)


@njit(nogil=True, error_model="numpy")
def _part(a, table, page, part):  # noqa: ANN001, ANN202 - compiled
    """Address of a head's keys in a page of the row (part = head), or of its values (part = heads + head)."""
    return a[POOL] + np.int64(table[page]) * a[BLOCK_BYTES] + a[KEYS_AT] + part * PAGE * a[HEAD_DIM]


@njit(nogil=True, error_model="numpy")
def _score(a, block, page, head, count, mine, scores_bytes, ahead):  # noqa: ANN001, ANN202 - compiled
    """Scores of all pairs of a tile with the keys of one page, for one head."""
    dim = a[HEAD_DIM]
    factor = np.float32(a[SCALE] * 2.0**-32)
    keys, scales = block + a[KEYS_AT] + head * PAGE * dim, block + a[SCALES_AT] + 4 * head * PAGE
    scores, words, queries = _places(dim, mine, scores_bytes)
    pair = 0
    while pair < count:
        q, w, to = queries + 2 * dim * pair, words + 12 * pair, scores + scores_bytes * pair + 4 * PAGE * page
        if count - pair >= 4:
            _score_4(q, 2 * dim, w, dim, keys, scales, to, scores_bytes, ahead, factor)
            pair += 4
        elif count - pair == 3:
            _score_3(q, 2 * dim, w, dim, keys, scales, to, scores_bytes, ahead, factor)
            pair += 3
        elif count - pair == 2:
            _score_2(q, 2 * dim, w, dim, keys, scales, to, scores_bytes, ahead, factor)
            pair += 2
        else:
            _score_1(q, 2 * dim, w, dim, keys, scales, to, scores_bytes, ahead, factor)
            pair += 1


@njit(nogil=True, error_model="numpy")
def _add(a, block, page, head, count, mine, scores_bytes, ahead):  # noqa: ANN001, ANN202 - compiled; one loop for each width
    """Add the weighted values of one page to a tile's results, for one head."""
    dim, heads = a[HEAD_DIM], a[NUM_KV_HEADS]
    values = block + a[KEYS_AT] + (heads + head) * PAGE * dim
    weights, _, _ = _places(dim, mine, scores_bytes)
    for pair in range(count):
        at = weights + scores_bytes * pair + 4 * PAGE * page
        scale_weights(at, block + a[SCALES_AT] + 4 * (heads + head) * PAGE)
    pair = 0
    while pair < count:
        w, out = weights + scores_bytes * pair + 4 * PAGE * page, mine + 4 * dim * pair
        wide = dim // 64 * 64
        num = min(4, count - pair)
        for d in range(0, wide, 64):
            if num == 4:
                _add_4(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
            elif num == 3:
                _add_3(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
            elif num == 2:
                _add_2(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
            else:
                _add_1(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
        for d in range(wide, dim, LANES):
            if num == 4:
                _narrow_4(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
            elif num == 3:
                _narrow_3(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
            elif num == 2:
                _narrow_2(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
            else:
                _narrow_1(w, scores_bytes, values + d, dim, out + 4 * d, 4 * dim, ahead + d)
        pair += num


@njit(nogil=True, error_model="numpy")
def _places(dim, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Addresses of a head's scores, words and queries; its results come first."""
    scores = mine + 4 * TILE_PAIRS * dim
    words = scores + TILE_PAIRS * scores_bytes
    return scores, words, words + 12 * TILE_PAIRS


@njit(nogil=True, error_model="numpy")
def _attend_tile(a, frame, tile, first_head, num_heads, scratch):  # noqa: ANN001, ANN202 - one pass after the other
    """Some heads of one tile. Page by page for all of them, because what they need of a page lies together."""
    dim, group, count = a[HEAD_DIM], a[PAIRS_A_TOKEN], np.int64(tile[3])
    limits = carray(as_pointer(frame[LIMITS]), (1 << 40,), np.int32)
    table = carray(as_pointer(frame[TABLES] + 4 * tile[0] * frame[TABLE_STRIDE]), (frame[TABLE_STRIDE],), np.int32)
    first_token, last_token = tile[1] + tile[2] // group, tile[1] + (tile[2] + count - 1) // group
    pages = (np.int64(limits[last_token]) + PAGE - 1) // PAGE
    first_page = max(0, np.int64(limits[first_token]) - a[WINDOW]) // PAGE
    scores_bytes = 4 * pages * PAGE
    size = frame[SCRATCH_BYTES] // frame[HEADS_AT_ONCE]
    for index in range(num_heads):
        mine = scratch + size * index
        _, words, queries = _places(dim, mine, scores_bytes)
        for pair in range(count):
            token = np.int64(tile[1]) + (tile[2] + pair) // group
            at = token * a[QKV_STRIDE] + ((first_head + index) * group + (tile[2] + pair) % group) * dim
            to = queries + 2 * dim * pair
            split_query(a[QKV] + 4 * at, dim, to, to + dim, words + 12 * pair)
        out = carray(as_pointer(mine), (TILE_PAIRS * dim,), np.float32)
        for i in range(count * dim):
            out[i] = np.float32(0.0)
    for page in range(first_page, pages):
        block = a[POOL] + np.int64(table[page]) * a[BLOCK_BYTES]
        for head in range(first_head, first_head + num_heads):
            if page + _PAGES_AHEAD < pages:
                ahead = _part(a, table, page + _PAGES_AHEAD, head)
            else:
                values = min(pages - 1, first_page + page + _PAGES_AHEAD - pages)
                ahead = _part(a, table, values, a[NUM_KV_HEADS] + head)
            mine = scratch + size * (head - first_head)
            _score(a, block, page, head, count, mine, scores_bytes, ahead)
    start = first_page * PAGE
    for index in range(num_heads):
        scores, words, _ = _places(dim, scratch + size * index, scores_bytes)
        # Each pair's sum takes the place of its query's scale, which nobody needs any more.
        sums = carray(as_pointer(words), (3 * TILE_PAIRS,), np.float32)
        for pair in range(count):
            limit = np.int64(limits[np.int64(tile[1]) + (tile[2] + pair) // group])
            row = scores + scores_bytes * pair + 4 * start
            sums[3 * pair] = weigh(row, max(0, limit - a[WINDOW] - start), limit - start, pages - first_page)
    for page in range(first_page, pages):
        block = a[POOL] + np.int64(table[page]) * a[BLOCK_BYTES]
        for head in range(first_head, first_head + num_heads):
            ahead = _part(a, table, min(pages - 1, page + _PAGES_AHEAD), a[NUM_KV_HEADS] + head)
            _add(a, block, page, head, count, scratch + size * (head - first_head), scores_bytes, ahead)
    for index in range(num_heads):
        _store(a, tile, first_head + index, scratch + size * index, scores_bytes)


@njit(nogil=True, error_model="numpy")
def _store(a, tile, head, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Divide by the sums of the weights and put the results in their places."""
    dim, group = a[HEAD_DIM], a[PAIRS_A_TOKEN]
    _, words, _ = _places(dim, mine, scores_bytes)
    sums = carray(as_pointer(words), (3 * TILE_PAIRS,), np.float32)
    out = carray(as_pointer(mine), (TILE_PAIRS * dim,), np.float32)
    for pair in range(tile[3]):
        token = np.int64(tile[1]) + (tile[2] + pair) // group
        at = token * a[OUT_STRIDE] + (head * group + (tile[2] + pair) % group) * dim
        to = carray(as_pointer(a[OUT] + 4 * at), (dim,), np.float32)
        for d in range(dim):
            to[d] = out[pair * dim + d] / sums[3 * pair]


@team.compiled
def _attend(raw) -> None:  # noqa: ANN001 - compiled
    """The first tasks write; whoever draws a later one waits for those who still do: all of them are at work."""
    a = carray(raw, (_NUM_ARGUMENTS,), np.int64)
    frame = carray(as_pointer(a[FRAME]), (FRAME_VALUES,), np.int64)
    slots = carray(as_pointer(frame[SLOTS]), (frame[ROWS],), np.int64)
    num_writes = (frame[ROWS] + _TOKENS_PER_WRITE - 1) // _TOKENS_PER_WRITE
    parts = a[NUM_KV_HEADS] // frame[HEADS_AT_ONCE]
    num_tasks = num_writes + frame[NUM_TILES] * parts
    address = a.ctypes.data
    scratch = frame[SCRATCH] + frame[SCRATCH_BYTES] * fetch_add(address + 8 * team.SLOT, 1)
    written = False
    while True:
        task = fetch_add(address + 8 * team.NEXT, 1)
        if task >= num_tasks:
            break
        if task < num_writes:
            _write(a, slots, task * _TOKENS_PER_WRITE, min(frame[ROWS], (task + 1) * _TOKENS_PER_WRITE))
            fetch_add(address + 8 * _WRITTEN, 1)
            continue
        while not written:
            written = fetch_add(address + 8 * _WRITTEN, 0) == num_writes
        task -= num_writes
        tile = carray(as_pointer(frame[TILES] + 4 * TILE_FIELDS * (task // parts)), (TILE_FIELDS,), np.int32)
        _attend_tile(a, frame, tile, task % parts * frame[HEADS_AT_ONCE], frame[HEADS_AT_ONCE], scratch)


def attention_stage(
    *,
    qkv: int,
    qkv_stride: int,
    pool: int,
    num_layers: int,
    layer: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    out: int,
    out_stride: int,
    window: int | None = None,
) -> Stage:
    """Put the fed tokens' keys and values into the pool, then attend, scaled by 1 / sqrt(H).

    A row of `qkv` (float32, strides in floats) holds N query heads, G keys and G values. ``window``: a token sees so
    many keys, itself included.
    """
    per_layer, per_scale = layer_bytes(num_kv_heads, head_dim), layer_scale_bytes(num_kv_heads)
    values = (
        *(qkv, qkv_stride, pool, num_layers * (per_layer + per_scale), layer * per_layer),
        *(num_layers * per_layer + layer * per_scale, head_dim, num_kv_heads, num_heads // num_kv_heads),
        *(out, out_stride, round(2**32 / head_dim**0.5), window or 1 << 40),
    )
    return Stage(_attend, values)
