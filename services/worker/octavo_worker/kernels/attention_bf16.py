"""Causal attention over pages of bfloat16, for any mix of decode rows and prompt chunks: one stage a layer.

T fed tokens, N query heads, G key-value heads, H head dim. A task is one tile (16 neighbouring (token, head) pairs of
one row) for one key-value head, or all. Queries, keys, values and weights are rounded to bfloat16; sums are float32 in
the order of `bfloat16`, over dims for scores and over the keys of one page after another for results. So a token's
result depends on nothing but its own query and the keys that it sees.

A block of the pool holds, for each layer, the keys of its 16 tokens [G, 32 H bytes], then the values [G, 32 H bytes].
"""

from __future__ import annotations

from functools import cache

import numpy as np

from octavo_worker.kernels import team
from octavo_worker.kernels.amx import release_tiles
from octavo_worker.kernels.amx_bf16 import has_amx_bf16, shape_attention_tiles
from octavo_worker.kernels.attend_bf16 import attend_by_pages, attend_by_tiles
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
    SCRATCH,
    SCRATCH_BYTES,
    SLOTS,
    TILE_FIELDS,
    TILES,
    TOKENS_PER_WRITE,
    WRITTEN,
    AttentionLayer,
)
from octavo_worker.kernels.bfloat16 import GROUP, flush_subnormals, keep_subnormals
from octavo_worker.kernels.kv_bf16 import put_key, put_value
from octavo_worker.kernels.program import FRAME, FRAME_VALUES, ROWS, Stage
from octavo_worker.kernels.vector import as_pointer, carray, fetch_add, njit

# Pairs that the matrix unit is worth starting for.
FEWEST_PAIRS = 4


def layer_bytes(num_kv_heads: int, head_dim: int) -> int:
    """Keys and values of a block in one layer."""
    return 4 * PAGE * num_kv_heads * head_dim


def block_bytes(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """A block: keys and values of all layers."""
    return num_layers * layer_bytes(num_kv_heads, head_dim)


@njit(nogil=True, error_model="numpy")
def _write(a, slots, first, last):  # noqa: ANN001, ANN202 - compiled
    """Round keys and values of some fed tokens into their slots."""
    heads, dim = a[NUM_KV_HEADS], a[HEAD_DIM]
    num_q = heads * a[PAIRS_A_TOKEN]
    for t in range(first, last):
        block, offset = a[POOL] + slots[t] // PAGE * a[BLOCK_BYTES], slots[t] % PAGE
        row = a[QKV] + 4 * t * a[QKV_STRIDE]
        for head in range(heads):
            keys = block + a[KEYS_AT] + 2 * head * PAGE * dim
            put_key(row + 4 * (num_q + head) * dim, dim, keys + 4 * offset)
            values = keys + 2 * heads * PAGE * dim + offset // 2 * 4 * dim + offset % 2 * 2
            put_value(row + 4 * (num_q + heads + head) * dim, dim, values)


@cache
def _kernel(use_tiles: bool) -> team.Launcher:
    """The kernel, with the matrix unit or without; numba compiles it for the constant."""

    def attention_bf16(raw):  # noqa: ANN001, ANN202 - compiled
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
        before = flush_subnormals()
        if use_tiles:
            shape_attention_tiles()
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
            if use_tiles and tile[3] >= FEWEST_PAIRS and a[HEAD_DIM] % GROUP == 0:
                for head in range(first, first + heads):
                    attend_by_tiles(a, frame, tile, head, scratch)
            else:
                attend_by_pages(a, frame, tile, first, heads, scratch)
        if use_tiles:
            release_tiles()
        keep_subnormals(before)

    return team.compiled(attention_bf16)


def attention_stage(of: AttentionLayer) -> Stage:
    """Put the fed tokens' keys and values into the pool, then attend, scaled by 1 / sqrt(H)."""
    arguments = of.arguments(
        block_bytes=block_bytes(of.num_layers, of.num_kv_heads, of.head_dim),
        keys_at=of.layer * layer_bytes(of.num_kv_heads, of.head_dim),
    )
    return Stage(_kernel(has_amx_bf16()), arguments)
