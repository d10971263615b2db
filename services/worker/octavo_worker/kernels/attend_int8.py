"""Attention of one tile of queries over pages of int8: scores, weights, sums of values. Compiled; see `attention_int8`.

Two ways, equal bit by bit: page by page for few queries, by vector instructions, and by the matrix unit for up to 16.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels.amx import (
    CHUNK_BYTES,
    DIMS,
    TILE_BYTES,
    add_chunk,
    gather_values,
    put_scores,
    put_sums,
    score_tile,
    start_sums,
)
from octavo_worker.kernels.attention_frame import (
    BLOCK_BYTES,
    HEAD_DIM,
    HEADS_AT_ONCE,
    KEYS_AT,
    LIMITS,
    NUM_KV_HEADS,
    OUT,
    OUT_STRIDE,
    PAGE,
    PAGES_AHEAD,
    PAIRS_A_TOKEN,
    POOL,
    QKV,
    QKV_STRIDE,
    SCALE,
    SCALES_AT,
    SCRATCH_BYTES,
    TILE_PAIRS,
    WINDOW,
    seen_pages,
    table,
)
from octavo_worker.kernels.kv_int8 import split_query
from octavo_worker.kernels.page_products import make_add_page, make_score_page
from octavo_worker.kernels.positions import mix_head
from octavo_worker.kernels.softmax_bytes import CHUNK, KEYS_A_SUM, PAGES_A_CHUNK, weigh
from octavo_worker.kernels.vector import LANES, as_pointer, carray, njit

# Two words a query.
_WORDS_BYTES = 8 * TILE_PAIRS
_DIMS_AT_ONCE = 32

_score_4, _score_3, _score_2, _score_1 = (make_score_page(n) for n in (4, 3, 2, 1))
_add_4, _add_3, _add_2, _add_1 = (make_add_page(n, _DIMS_AT_ONCE // LANES) for n in (4, 3, 2, 1))
_narrow_4, _narrow_3, _narrow_2, _narrow_1 = (make_add_page(n, 1) for n in (4, 3, 2, 1))


def scratch_bytes(max_keys: int, head_dim: int) -> int:
    """Work space that a thread needs for one head of sequences of up to max_keys tokens: a multiple of 64."""
    # A window may begin anywhere, and its first chunk with it.
    num_chunks = -(-max_keys // CHUNK) + 1
    # Results, queries; scores, and scales of values; words; sums of a page, values of a chunk.
    of_queries = TILE_PAIRS * (8 * head_dim + 2 * head_dim)
    return of_queries + (TILE_PAIRS + 1) * 4 * CHUNK * num_chunks + _WORDS_BYTES + 2 * TILE_BYTES + CHUNK_BYTES


@njit(nogil=True, error_model="numpy")
def _places(dim, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Addresses of a head's queries, scores, scales, words and rest; its results come first."""
    queries = mine + TILE_PAIRS * 8 * dim
    scores = queries + TILE_PAIRS * 2 * dim
    scales = scores + TILE_PAIRS * scores_bytes
    words = scales + scores_bytes
    return queries, scores, scales, words, words + _WORDS_BYTES


@njit(nogil=True, error_model="numpy")
def _extent(a, frame, tile):  # noqa: ANN001, ANN202 - compiled
    """First page that a tile sees, the page behind its last, and bytes of a query's scores."""
    first_page, pages, _ = seen_pages(a, frame, tile)
    num_chunks = (pages - first_page + PAGES_A_CHUNK - 1) // PAGES_A_CHUNK
    return first_page, pages, 4 * CHUNK * num_chunks


@njit(nogil=True, error_model="numpy")
def _begin(a, tile, head, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Quantise a tile's queries of one head."""
    dim, group = a[HEAD_DIM], a[PAIRS_A_TOKEN]
    queries, _, _, words, _ = _places(dim, mine, scores_bytes)
    factor = np.float32(a[SCALE] * 2.0**-32)
    for pair in range(tile[3]):
        token = np.int64(tile[1]) + (tile[2] + pair) // group
        at = token * a[QKV_STRIDE] + (head * group + (tile[2] + pair) % group) * dim
        to = queries + 2 * dim * pair
        split_query(a[QKV] + 4 * at, dim, to, to + dim, words + 8 * pair, factor)


@njit(nogil=True, error_model="numpy")
def _keep_scales(a, block, head, to):  # noqa: ANN001, ANN202 - compiled
    """Copy the scales of a page's values to the tile's own."""
    scales = carray(as_pointer(block + a[SCALES_AT] + 4 * (a[NUM_KV_HEADS] + head) * PAGE), (PAGE,), np.float32)
    kept = carray(as_pointer(to), (PAGE,), np.float32)
    for i in range(PAGE):
        kept[i] = scales[i]


@njit(nogil=True, error_model="numpy")
def _half_bits(num_keys):  # noqa: ANN001, ANN202 - compiled
    """Bits of half a weight: few enough that no sum leaves int32, by the query's own number of keys."""
    bits = 8
    while num_keys > KEYS_A_SUM << (8 - bits):
        bits -= 1
    return bits


@njit(nogil=True, error_model="numpy")
def _weigh(a, frame, tile, first_page, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Scores of all queries into weights."""
    limits = carray(as_pointer(frame[LIMITS]), (1 << 40,), np.int32)
    _, scores, scales, words, _ = _places(a[HEAD_DIM], mine, scores_bytes)
    start, num_chunks = first_page * PAGE, scores_bytes // (4 * CHUNK)
    for pair in range(tile[3]):
        limit = np.int64(limits[np.int64(tile[1]) + (tile[2] + pair) // a[PAIRS_A_TOKEN]])
        seen, row = max(0, limit - a[WINDOW] - start), scores + scores_bytes * pair
        weigh(row, scales, seen, limit - start, num_chunks, _half_bits(limit), words + 8 * pair)


@njit(nogil=True, error_model="numpy")
def _store(a, frame, tile, head, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Put high and low halves together, divide by the weights' sums, undo the values' mixing, put results in place."""
    dim, group = a[HEAD_DIM], a[PAIRS_A_TOKEN]
    _, _, _, words, _ = _places(dim, mine, scores_bytes)
    totals = carray(as_pointer(words), (2 * TILE_PAIRS,), np.float32)
    sums = carray(as_pointer(mine), (TILE_PAIRS * 2 * dim,), np.int32)
    limits = carray(as_pointer(frame[LIMITS]), (1 << 40,), np.int32)
    for pair in range(tile[3]):
        token = np.int64(tile[1]) + (tile[2] + pair) // group
        base = np.float32(1 << _half_bits(limits[token]))
        at = token * a[OUT_STRIDE] + (head * group + (tile[2] + pair) % group) * dim
        to = carray(as_pointer(a[OUT] + 4 * at), (dim,), np.float32)
        factor = totals[2 * pair] / totals[2 * pair + 1]
        for d in range(dim):
            high, low = np.float32(sums[2 * pair * dim + d]), np.float32(sums[(2 * pair + 1) * dim + d])
            to[d] = (high * base + low) * factor
        mix_head(to, a[OUT] + 4 * at)


@njit(nogil=True, error_model="numpy")
def attend_by_tiles(a, frame, tile, head, mine):  # noqa: ANN001, ANN201 - compiled
    """One head of a tile by the matrix unit, which has its shapes. What stands for missing queries is not read."""
    dim, heads = a[HEAD_DIM], a[NUM_KV_HEADS]
    first_page, pages, scores_bytes = _extent(a, frame, tile)
    blocks = table(frame, tile)
    queries, scores, scales, words, rest = _places(dim, mine, scores_bytes)
    _begin(a, tile, head, mine, scores_bytes)
    for page in range(first_page, pages):
        block, at = a[POOL] + np.int64(blocks[page]) * a[BLOCK_BYTES], 4 * PAGE * (page - first_page)
        score_tile(queries, dim, block + a[KEYS_AT] + head * PAGE * dim, rest)
        put_scores(rest, words, block + a[SCALES_AT] + 4 * head * PAGE, scores + at, scores_bytes)
        _keep_scales(a, block, head, scales + at)
    _weigh(a, frame, tile, first_page, mine, scores_bytes)
    gathered = rest + 2 * TILE_BYTES
    for d in range(0, dim, DIMS):
        start_sums()
        for chunk in range(first_page, pages, PAGES_A_CHUNK):
            for page in range(chunk, min(pages, chunk + PAGES_A_CHUNK)):
                block = a[POOL] + np.int64(blocks[page]) * a[BLOCK_BYTES]
                values = block + a[KEYS_AT] + (heads + head) * PAGE * dim
                gather_values(values + 4 * d, dim, gathered + (page - chunk) * (CHUNK_BYTES // PAGES_A_CHUNK))
            add_chunk(scores + 2 * PAGE * (chunk - first_page), scores_bytes, gathered)
        put_sums(mine + 4 * d, 8 * dim, dim)
    _store(a, frame, tile, head, mine, scores_bytes)


@njit(nogil=True, error_model="numpy")
def _part(a, blocks, page, part):  # noqa: ANN001, ANN202 - compiled
    """Address of a head's keys in a page of the row (part = head), or of its values (part = heads + head)."""
    return a[POOL] + np.int64(blocks[page]) * a[BLOCK_BYTES] + a[KEYS_AT] + part * PAGE * a[HEAD_DIM]


@njit(nogil=True, error_model="numpy")
def _score(a, block, at, head, count, mine, scores_bytes, ahead):  # noqa: ANN001, ANN202 - compiled
    """Scores of all queries of a tile with the keys of one page, for one head."""
    dim = a[HEAD_DIM]
    keys, key_scales = block + a[KEYS_AT] + head * PAGE * dim, block + a[SCALES_AT] + 4 * head * PAGE
    queries, scores, scales, words, _ = _places(dim, mine, scores_bytes)
    _keep_scales(a, block, head, scales + at)
    pair = 0
    while pair < count:
        q, w, to = queries + 2 * dim * pair, words + 8 * pair, scores + scores_bytes * pair + at
        num = min(4, count - pair)
        if num == 4:
            _score_4(q, dim, w, keys, key_scales, to, scores_bytes, ahead)
        elif num == 3:
            _score_3(q, dim, w, keys, key_scales, to, scores_bytes, ahead)
        elif num == 2:
            _score_2(q, dim, w, keys, key_scales, to, scores_bytes, ahead)
        else:
            _score_1(q, dim, w, keys, key_scales, to, scores_bytes, ahead)
        pair += num


@njit(nogil=True, error_model="numpy")
def _add(a, values, place, count, mine, scores_bytes, ahead):  # noqa: ANN001, ANN202 - compiled; one loop for each width
    """Add the weighted values of one page to a tile's results, for one head."""
    dim = a[HEAD_DIM]
    _, weights, _, _, _ = _places(dim, mine, scores_bytes)
    pair, wide = 0, dim // _DIMS_AT_ONCE * _DIMS_AT_ONCE
    while pair < count:
        w, out = weights + scores_bytes * pair + place, mine + 8 * dim * pair
        num = min(4, count - pair)
        for d in range(0, wide, _DIMS_AT_ONCE):
            if num == 4:
                _add_4(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
            elif num == 3:
                _add_3(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
            elif num == 2:
                _add_2(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
            else:
                _add_1(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
        for d in range(wide, dim, LANES):
            if num == 4:
                _narrow_4(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
            elif num == 3:
                _narrow_3(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
            elif num == 2:
                _narrow_2(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
            else:
                _narrow_1(w, scores_bytes, values + 4 * d, dim, out + 4 * d, 8 * dim, ahead + 4 * d)
        pair += num


@njit(nogil=True, error_model="numpy")
def attend_by_pages(a, frame, tile, first_head, num_heads, scratch):  # noqa: ANN001, ANN201 - compiled
    """Some heads of one tile. Page by page for all of them, because what they need of a page lies together."""
    dim, heads, count = a[HEAD_DIM], a[NUM_KV_HEADS], np.int64(tile[3])
    first_page, pages, scores_bytes = _extent(a, frame, tile)
    blocks = table(frame, tile)
    size = frame[SCRATCH_BYTES] // frame[HEADS_AT_ONCE]
    for index in range(num_heads):
        mine = scratch + size * index
        _begin(a, tile, first_head + index, mine, scores_bytes)
        sums = carray(as_pointer(mine), (TILE_PAIRS * 2 * dim,), np.int32)
        for i in range(count * 2 * dim):
            sums[i] = 0
    for page in range(first_page, pages):
        block = a[POOL] + np.int64(blocks[page]) * a[BLOCK_BYTES]
        for head in range(first_head, first_head + num_heads):
            if page + PAGES_AHEAD < pages:
                ahead = _part(a, blocks, page + PAGES_AHEAD, head)
            else:
                following = min(pages - 1, first_page + page + PAGES_AHEAD - pages)
                ahead = _part(a, blocks, following, heads + head)
            mine = scratch + size * (head - first_head)
            _score(a, block, 4 * PAGE * (page - first_page), head, count, mine, scores_bytes, ahead)
    for index in range(num_heads):
        _weigh(a, frame, tile, first_page, scratch + size * index, scores_bytes)
    for page in range(first_page, pages):
        chunk, within = (page - first_page) // PAGES_A_CHUNK, (page - first_page) % PAGES_A_CHUNK
        for head in range(first_head, first_head + num_heads):
            values = _part(a, blocks, page, heads + head)
            ahead = _part(a, blocks, min(pages - 1, page + PAGES_AHEAD), heads + head)
            place = 2 * CHUNK * chunk + PAGE * within
            _add(a, values, place, count, scratch + size * (head - first_head), scores_bytes, ahead)
    for index in range(num_heads):
        _store(a, frame, tile, first_head + index, scratch + size * index, scores_bytes)
