"""What attention's kernels share, whatever keys and values are kept in: arguments, fields of the frame, tiles of work.

T fed tokens, N query heads, G key-value heads, H head dim. A tile is up to 16 neighbouring (token, head) pairs of one
row, a task one tile for one key-value head, or all. Knows no keys and no values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.program import FIRST_OWN, FRAME_VALUES
from octavo_worker.kernels.softmax_bytes import LOG2E
from octavo_worker.kernels.vector import as_pointer, carray, njit

# Tokens of a block in one layer.
PAGE = 16
# The stage's own arguments.
(
    QKV, QKV_STRIDE, POOL, BLOCK_BYTES, KEYS_AT, SCALES_AT, HEAD_DIM, NUM_KV_HEADS, PAIRS_A_TOKEN, OUT, OUT_STRIDE,
    SCALE, WINDOW,
) = range(FIRST_OWN, FIRST_OWN + 13)  # fmt: skip
NUM_ARGUMENTS = FIRST_OWN + 13
# Of the frame: what a step's plan says, the same for all layers.
TILES, NUM_TILES, TABLES, TABLE_STRIDE, LIMITS, SLOTS, SCRATCH, SCRATCH_BYTES, HEADS_AT_ONCE = range(2, 11)
assert HEADS_AT_ONCE < FRAME_VALUES
# A tile: row of the block tables, first fed token, first pair counted from it, number of pairs.
TILE_FIELDS, TILE_PAIRS = 4, 16
# The hardware does not guess the jump from page to page, and memory takes longer than the work on one.
PAGES_AHEAD = 3
TOKENS_PER_WRITE = 16
# Counts the writing tasks that are done; programs set it to 0 before they run.
WRITTEN = team.NUM_TASKS


def heads_at_once(num_tiles: int, num_kv_heads: int, num_threads: int) -> int:
    """Heads of a task: all, since a page's parts lie together, unless threads would get too little to do."""
    return num_kv_heads if num_tiles >= 4 * num_threads else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """One layer's attention: addresses and sizes.

    A row of `qkv` (float32, strides in floats) holds N query heads, G keys and G values. ``window``: a token sees so
    many keys, itself included.
    """

    qkv: int
    qkv_stride: int
    pool: int
    num_layers: int
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    out: int
    out_stride: int
    window: int | None = None

    def arguments(self, *, block_bytes: int, keys_at: int, scales_at: int = 0) -> tuple[int, ...]:
        """The stage's own arguments; a block has so many bytes, the layer's keys and scales begin so far within it."""
        return (
            *(self.qkv, self.qkv_stride, self.pool, block_bytes, keys_at, scales_at),
            *(self.head_dim, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.out, self.out_stride),
            *(round(2**32 * LOG2E / self.head_dim**0.5), self.window or 1 << 40),
        )


@njit(nogil=True, error_model="numpy")
def table(frame, tile):  # noqa: ANN001, ANN201 - compiled
    """Blocks of a tile's row."""
    return carray(as_pointer(frame[TABLES] + 4 * tile[0] * frame[TABLE_STRIDE]), (frame[TABLE_STRIDE],), np.int32)


@njit(nogil=True, error_model="numpy")
def seen_pages(a, frame, tile):  # noqa: ANN001, ANN201 - compiled
    """First page that a tile sees, the page behind its last, and keys of the last."""
    limits = carray(as_pointer(frame[LIMITS]), (1 << 40,), np.int32)
    group, count = a[PAIRS_A_TOKEN], np.int64(tile[3])
    first_token, last_token = tile[1] + tile[2] // group, tile[1] + (tile[2] + count - 1) // group
    pages = (np.int64(limits[last_token]) + PAGE - 1) // PAGE
    first_page = max(0, np.int64(limits[first_token]) - a[WINDOW]) // PAGE
    return first_page, pages, np.int64(limits[last_token]) - (pages - 1) * PAGE
