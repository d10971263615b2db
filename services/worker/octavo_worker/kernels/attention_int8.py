"""Causal attention over pages of int8 keys and values, for any mix of decode rows and prompt chunks: one stage a layer.

T fed tokens, N query heads, G key-value heads, H head dim. A task is one tile (16 neighbouring (token, head) pairs of
one row) for one key-value head, or all. Sums of products are exact; the sum of the weights runs in an order that the
keys' positions alone give. So a token's result depends on nothing but its own query and the keys that it sees.

A block of the pool holds, for each layer, the keys of its 16 tokens [G, 16 H bytes], then the values [G, 16 H bytes];
behind all layers, for each layer, the keys' scales [G, 16] and the values' scales [G, 16], float32.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.amx import has_amx, release_tiles, shape_tiles
from octavo_worker.kernels.attend_int8 import attend_by_pages, attend_by_tiles
from octavo_worker.kernels.attention_frame import (
    BLOCK_BYTES,
    HEAD_DIM,
    HEADS_AT_ONCE,
    KEYS_AT,
    NUM_ARGUMENTS,
    NUM_KV_HEADS,
    NUM_TILES,
    PAGE,
    PAIRS_A_TOKEN,
    POOL,
    QKV,
    QKV_STRIDE,
    SCALES_AT,
    SCRATCH,
    SCRATCH_BYTES,
    SLOTS,
    TILE_FIELDS,
    TILES,
    TOKENS_PER_WRITE,
    WRITTEN,
    AttentionLayer,
)
from octavo_worker.kernels.kv_int8 import put_head
from octavo_worker.kernels.program import FRAME, FRAME_VALUES, ROWS, Stage
from octavo_worker.kernels.vector import as_pointer, carray, fetch_add, njit

# Pairs that the matrix unit is worth starting for.
FEWEST_PAIRS = 8


def layer_bytes(num_kv_heads: int, head_dim: int) -> int:
    """Keys and values of a block in one layer, without their scales."""
    return 2 * PAGE * num_kv_heads * head_dim


def layer_scale_bytes(num_kv_heads: int) -> int:
    """Their scales."""
    return 2 * PAGE * num_kv_heads * 4


def block_bytes(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """A block: keys, values and scales of all layers."""
    return num_layers * (layer_bytes(num_kv_heads, head_dim) + layer_scale_bytes(num_kv_heads))


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
            put_head(row + 4 * (num_q + head) * dim, dim, keys + 4 * offset, 4 * PAGE, 1, 128, scales)
            values = keys + heads * PAGE * dim + offset // 4 * 4 * dim + offset % 4
            put_head(row + 4 * (num_q + heads + head) * dim, dim, values, 16, 4, 0, scales + 4 * heads * PAGE)


@cache
def _kernel(use_tiles: bool) -> team.Launcher:
    """The kernel, with the matrix unit or without; numba compiles it for the constant."""

    def attention_int8(raw):  # noqa: ANN001, ANN202 - compiled
        # The first tasks write; whoever draws a later one waits for those who still do: all of them are at work.
        a = carray(raw, (NUM_ARGUMENTS,), np.int64)
        frame = carray(as_pointer(a[FRAME]), (FRAME_VALUES,), np.int64)
        slots = carray(as_pointer(frame[SLOTS]), (frame[ROWS],), np.int64)
        num_writes = (frame[ROWS] + TOKENS_PER_WRITE - 1) // TOKENS_PER_WRITE
        heads = frame[HEADS_AT_ONCE]
        parts = a[NUM_KV_HEADS] // heads
        num_tasks = num_writes + frame[NUM_TILES] * parts
        address = a.ctypes.data
        scratch = frame[SCRATCH] + frame[SCRATCH_BYTES] * fetch_add(address + 8 * team.SLOT, 1)
        written = False
        if use_tiles:
            shape_tiles()
        while True:
            task = fetch_add(address + 8 * team.NEXT, 1)
            if task >= num_tasks:
                break
            if task < num_writes:
                _write(a, slots, task * TOKENS_PER_WRITE, min(frame[ROWS], (task + 1) * TOKENS_PER_WRITE))
                fetch_add(address + 8 * WRITTEN, 1)
                continue
            while not written:
                written = fetch_add(address + 8 * WRITTEN, 0) == num_writes
            task -= num_writes
            tile = carray(as_pointer(frame[TILES] + 4 * TILE_FIELDS * (task // parts)), (TILE_FIELDS,), np.int32)
            first = task % parts * heads
            if use_tiles and tile[3] >= FEWEST_PAIRS and a[HEAD_DIM] % 64 == 0:
                for head in range(first, first + heads):
                    attend_by_tiles(a, frame, tile, head, scratch)
            else:
                attend_by_pages(a, frame, tile, first, heads, scratch)
        if use_tiles:
            release_tiles()

    return team.compiled(attention_int8)


def attention_stage(of: AttentionLayer) -> Stage:
    """Put the fed tokens' keys and values into the pool, then attend, scaled by 1 / sqrt(H)."""
    per_layer, per_scale = layer_bytes(of.num_kv_heads, of.head_dim), layer_scale_bytes(of.num_kv_heads)
    arguments = of.arguments(
        block_bytes=block_bytes(of.num_layers, of.num_kv_heads, of.head_dim),
        keys_at=of.layer * per_layer,
        scales_at=of.num_layers * per_layer + of.layer * per_scale,
    )
    return Stage(_kernel(has_amx()), arguments)
