"""Attention of one tile of queries over pages of bfloat16: scores, weights, sums of values. See `attention_bf16`.

Two ways, equal bit by bit: page by page for few queries, by vector instructions, and by the matrix unit for up to 16.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels.amx import TILE_BYTES, start_sums
from octavo_worker.kernels.amx_bf16 import make_page_sums, score_tile
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
    SCRATCH_BYTES,
    TILE_PAIRS,
    WINDOW,
    seen_pages,
    table,
)
from octavo_worker.kernels.bfloat16 import round_row
from octavo_worker.kernels.kv_bf16 import copy_values, make_add_page, make_score_page, make_weigh
from octavo_worker.kernels.vector import LANES, as_pointer, carray, njit

_SUMS_BYTES = 4 * TILE_PAIRS
_weigh_floats, _weigh_shorts = make_weigh(False), make_weigh(True)
_score_4, _score_3, _score_2, _score_1 = (make_score_page(n) for n in (4, 3, 2, 1))
_add_4, _add_3, _add_2, _add_1 = (make_add_page(n, 4) for n in (4, 3, 2, 1))
_narrow_4, _narrow_3, _narrow_2, _narrow_1 = (make_add_page(n, 1) for n in (4, 3, 2, 1))
_tile_add_4, _tile_put_4 = make_page_sums(4)
_tile_add_2, _tile_put_2 = make_page_sums(2)


def scratch_bytes(max_keys: int, head_dim: int) -> int:
    """Work space that a thread needs for one head of sequences of up to max_keys tokens: a multiple of 64."""
    # Results, queries twice; scores; sums of weights; a page's values; sums of a page.
    of_queries = TILE_PAIRS * (4 + 4 + 2) * head_dim
    num_pages = -(-max_keys // PAGE)
    return of_queries + TILE_PAIRS * 4 * PAGE * num_pages + _SUMS_BYTES + 2 * PAGE * head_dim + TILE_BYTES


@njit(nogil=True, error_model="numpy")
def _places(dim, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Addresses of a head's queries as float32 and as bfloat16, scores, sums and rest; its results come first."""
    floats = mine + TILE_PAIRS * 4 * dim
    shorts = floats + TILE_PAIRS * 4 * dim
    scores = shorts + TILE_PAIRS * 2 * dim
    sums = scores + TILE_PAIRS * scores_bytes
    return floats, shorts, scores, sums, sums + _SUMS_BYTES


@njit(nogil=True, error_model="numpy")
def _extent(a, frame, tile):  # noqa: ANN001, ANN202 - compiled
    """First page that a tile sees, the page behind its last, keys of the last, and bytes of a query's scores."""
    first_page, pages, in_last = seen_pages(a, frame, tile)
    return first_page, pages, in_last, 4 * PAGE * (pages - first_page)


@njit(nogil=True, error_model="numpy")
def _part(a, blocks, page, part):  # noqa: ANN001, ANN202 - compiled
    """Address of a head's keys in a page of the row (part = head), or of its values (part = heads + head)."""
    return a[POOL] + np.int64(blocks[page]) * a[BLOCK_BYTES] + a[KEYS_AT] + part * 2 * PAGE * a[HEAD_DIM]


@njit(nogil=True, error_model="numpy")
def _begin(a, tile, head, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Round a tile's queries of one head."""
    dim, group = a[HEAD_DIM], a[PAIRS_A_TOKEN]
    floats, shorts, _, _, _ = _places(dim, mine, scores_bytes)
    for pair in range(tile[3]):
        token = np.int64(tile[1]) + (tile[2] + pair) // group
        at = token * a[QKV_STRIDE] + (head * group + (tile[2] + pair) % group) * dim
        round_row(a[QKV] + 4 * at, dim, floats + 4 * dim * pair, shorts + 2 * dim * pair)


@njit(nogil=True, error_model="numpy")
def _weigh(a, frame, tile, first_page, mine, scores_bytes, packs):  # noqa: ANN001, ANN202 - compiled
    """Scores of all queries into weights, and the sums of these."""
    limits = carray(as_pointer(frame[LIMITS]), (1 << 40,), np.int32)
    _, _, scores, sums_at, _ = _places(a[HEAD_DIM], mine, scores_bytes)
    sums = carray(as_pointer(sums_at), (TILE_PAIRS,), np.float32)
    start, num_pages = first_page * PAGE, scores_bytes // (4 * PAGE)
    for pair in range(tile[3]):
        limit = np.int64(limits[np.int64(tile[1]) + (tile[2] + pair) // a[PAIRS_A_TOKEN]])
        seen, row = max(0, limit - a[WINDOW] - start), scores + scores_bytes * pair
        if packs:
            sums[pair] = _weigh_shorts(row, seen, limit - start, num_pages)
        else:
            sums[pair] = _weigh_floats(row, seen, limit - start, num_pages)


@njit(nogil=True, error_model="numpy")
def _store(a, tile, head, mine, scores_bytes):  # noqa: ANN001, ANN202 - compiled
    """Divide by the sums of the weights and put the results in their places."""
    dim, group = a[HEAD_DIM], a[PAIRS_A_TOKEN]
    _, _, _, sums_at, _ = _places(dim, mine, scores_bytes)
    sums = carray(as_pointer(sums_at), (TILE_PAIRS,), np.float32)
    results = carray(as_pointer(mine), (TILE_PAIRS * dim,), np.float32)
    for pair in range(tile[3]):
        token = np.int64(tile[1]) + (tile[2] + pair) // group
        at = token * a[OUT_STRIDE] + (head * group + (tile[2] + pair) % group) * dim
        to = carray(as_pointer(a[OUT] + 4 * at), (dim,), np.float32)
        for d in range(dim):
            to[d] = results[pair * dim + d] / sums[pair]


@njit(nogil=True, error_model="numpy")
def attend_by_tiles(a, frame, tile, head, mine):  # noqa: ANN001, ANN201 - compiled
    """One head of a tile by the matrix unit, which has its shapes. What stands for missing queries is not read."""
    dim, heads = a[HEAD_DIM], a[NUM_KV_HEADS]
    first_page, pages, in_last, scores_bytes = _extent(a, frame, tile)
    blocks = table(frame, tile)
    _, shorts, scores, _, rest = _places(dim, mine, scores_bytes)
    factor = np.float32(a[SCALE] * 2.0**-32)
    _begin(a, tile, head, mine, scores_bytes)
    for page in range(first_page, pages):
        to = scores + 4 * PAGE * (page - first_page)
        score_tile(shorts, dim, _part(a, blocks, page, head), rest, to, scores_bytes, factor)
    _weigh(a, frame, tile, first_page, mine, scores_bytes, True)
    kept = rest + TILE_BYTES
    copy_values(_part(a, blocks, pages - 1, heads + head), dim, in_last, kept)
    for d in range(0, dim, 4 * LANES):
        start_sums()
        is_wide = dim - d >= 4 * LANES
        for page in range(first_page, pages):
            values = (kept if page == pages - 1 else _part(a, blocks, page, heads + head)) + 4 * d
            weights = scores + 2 * PAGE * (page - first_page)
            if is_wide:
                _tile_add_4(weights, scores_bytes, values, dim)
            else:
                _tile_add_2(weights, scores_bytes, values, dim)
        if is_wide:
            _tile_put_4(mine + 4 * d, dim)
        else:
            _tile_put_2(mine + 4 * d, dim)
    _store(a, tile, head, mine, scores_bytes)


@njit(nogil=True, error_model="numpy")
def _score(a, keys, to, count, mine, scores_bytes, ahead):  # noqa: ANN001, ANN202 - compiled
    """Scores of all queries of a tile with the keys of one page, for one head."""
    dim = a[HEAD_DIM]
    factor = np.float32(a[SCALE] * 2.0**-32)
    floats, _, _, _, _ = _places(dim, mine, scores_bytes)
    pair = 0
    while pair < count:
        q, out = floats + 4 * dim * pair, to + scores_bytes * pair
        num = min(4, count - pair)
        if num == 4:
            _score_4(q, dim, keys, out, scores_bytes, ahead, factor)
        elif num == 3:
            _score_3(q, dim, keys, out, scores_bytes, ahead, factor)
        elif num == 2:
            _score_2(q, dim, keys, out, scores_bytes, ahead, factor)
        else:
            _score_1(q, dim, keys, out, scores_bytes, ahead, factor)
        pair += num


@njit(nogil=True, error_model="numpy")
def _add(a, values, weights, count, mine, scores_bytes, ahead):  # noqa: ANN001, ANN202 - compiled; one loop for each width
    """Add the weighted values of one page to a tile's results, for one head."""
    dim = a[HEAD_DIM]
    pair, wide = 0, dim // (4 * LANES) * 4 * LANES
    while pair < count:
        w, out = weights + scores_bytes * pair, mine + 4 * dim * pair
        num = min(4, count - pair)
        for d in range(0, wide, 4 * LANES):
            if num == 4:
                _add_4(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
            elif num == 3:
                _add_3(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
            elif num == 2:
                _add_2(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
            else:
                _add_1(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
        for d in range(wide, dim, LANES):
            if num == 4:
                _narrow_4(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
            elif num == 3:
                _narrow_3(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
            elif num == 2:
                _narrow_2(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
            else:
                _narrow_1(w, scores_bytes, values + 4 * d, dim, out + 4 * d, ahead + 4 * d)
        pair += num


@njit(nogil=True, error_model="numpy")
def attend_by_pages(a, frame, tile, first_head, num_heads, scratch):  # noqa: ANN001, ANN201 - compiled
    """Some heads of one tile. Page by page for all of them, because what they need of a page lies together."""
    dim, heads, count = a[HEAD_DIM], a[NUM_KV_HEADS], np.int64(tile[3])
    first_page, pages, in_last, scores_bytes = _extent(a, frame, tile)
    blocks = table(frame, tile)
    size = frame[SCRATCH_BYTES] // frame[HEADS_AT_ONCE]
    for index in range(num_heads):
        mine = scratch + size * index
        _begin(a, tile, first_head + index, mine, scores_bytes)
        results = carray(as_pointer(mine), (TILE_PAIRS * dim,), np.float32)
        for i in range(count * dim):
            results[i] = np.float32(0.0)
    for page in range(first_page, pages):
        for index in range(num_heads):
            mine = scratch + size * index
            if page + PAGES_AHEAD < pages:
                ahead = _part(a, blocks, page + PAGES_AHEAD, first_head + index)
            else:
                following = min(pages - 1, first_page + page + PAGES_AHEAD - pages)
                ahead = _part(a, blocks, following, heads + first_head + index)
            _, _, scores, _, _ = _places(dim, mine, scores_bytes)
            keys = _part(a, blocks, page, first_head + index)
            _score(a, keys, scores + 4 * PAGE * (page - first_page), count, mine, scores_bytes, ahead)
    for index in range(num_heads):
        _weigh(a, frame, tile, first_page, scratch + size * index, scores_bytes, False)
    for page in range(first_page, pages):
        for index in range(num_heads):
            mine = scratch + size * index
            _, _, scores, _, rest = _places(dim, mine, scores_bytes)
            values = _part(a, blocks, page, heads + first_head + index)
            if page == pages - 1:
                copy_values(values, dim, in_last, rest)
                values = rest
            ahead = _part(a, blocks, min(pages - 1, page + PAGES_AHEAD), heads + first_head + index)
            _add(a, values, scores + 4 * PAGE * (page - first_page), count, mine, scores_bytes, ahead)
    for index in range(num_heads):
        _store(a, tile, first_head + index, scratch + size * index, scores_bytes)
