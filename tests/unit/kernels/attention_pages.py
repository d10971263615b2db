"""Pools that attention's kernels are tested on, and one call of a kernel by block tables as a step has them."""

from __future__ import annotations

import numpy as np

from octavo_worker.attention.base import AttnBatch
from octavo_worker.attention.tiles import cut_tiles, visible_lengths
from octavo_worker.kernels import attention_frame
from octavo_worker.kernels.program import Program
from octavo_worker.runtime.arithmetic import Attention

LAYERS, LAYER = 3, 1


class Pages:
    """A pool whose free pages are poison, and tables that jump about in it."""

    def __init__(self, attention: Attention, num_kv_heads: int, head_dim: int, num_blocks: int = 40) -> None:
        self.attention, self.heads, self.dim = attention, num_kv_heads, head_dim
        self.memory = np.full((num_blocks, attention.block_bytes(LAYERS, num_kv_heads, head_dim)), 255, np.uint8)
        self.order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)

    def table(self, row: int, num_blocks: int) -> np.ndarray:
        return self.order[10 * row : 10 * row + num_blocks]


def attend(pages: Pages, num_heads: int, rows, *, window=None, threads=1, heads=1) -> np.ndarray:
    """Feed (row, start, qkv [n, N + 2 G, H]) for some rows; returns [T, N, H]."""
    qkv = np.concatenate([part for _, _, part in rows]).astype(np.float32)
    num_tokens, width = len(qkv), qkv[0].size
    out = np.full((num_tokens, num_heads, pages.dim), np.nan, np.float32)
    layer = attention_frame.AttentionLayer(
        qkv=qkv.ctypes.data, qkv_stride=width, pool=pages.memory.ctypes.data, num_layers=LAYERS, layer=LAYER,
        num_heads=num_heads, num_kv_heads=pages.heads, head_dim=pages.dim, out=out.ctypes.data,
        out_stride=num_heads * pages.dim, window=window,
    )  # fmt: skip
    program = Program([pages.attention.stage(layer)])
    starts = np.array([start for _, start, _ in rows], np.int32)
    counts = np.array([len(part) for _, _, part in rows], np.int32)
    num_blocks = -(-int((starts + counts).max()) // 16)
    tables = np.stack([pages.table(row, num_blocks) for row, _, _ in rows])
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
    slots = tables[np.repeat(np.arange(len(rows)), counts), positions // 16].astype(np.int64) * 16 + positions % 16
    batch = AttnBatch(starts_R=starts, num_tokens_R=counts, tables_RB=tables, slots_T=slots)
    tiles, limits = cut_tiles(batch, num_heads // pages.heads), visible_lengths(batch)
    size = heads * pages.attention.scratch_bytes(int(limits.max()), pages.dim)
    scratch = np.full(threads * size, 255, np.uint8)
    frame = program.frame
    frame[attention_frame.TILES], frame[attention_frame.NUM_TILES] = tiles.ctypes.data, len(tiles)
    frame[attention_frame.TABLES], frame[attention_frame.TABLE_STRIDE] = tables.ctypes.data, num_blocks
    frame[attention_frame.LIMITS], frame[attention_frame.SLOTS] = limits.ctypes.data, slots.ctypes.data
    frame[attention_frame.SCRATCH], frame[attention_frame.SCRATCH_BYTES] = scratch.ctypes.data, size
    frame[attention_frame.HEADS_AT_ONCE] = heads
    program.run(num_tokens, threads)
    return out


def chunks_and_company(attention: Attention, qkv: np.ndarray, chunk: int, window: int | None) -> np.ndarray:
    """A sequence of 9 query heads that share 3 keys and values, fed in chunks between two other rows."""
    pages, parts = Pages(attention, 3, 64), []
    for start in range(0, len(qkv), chunk):
        mine = qkv[start : start + chunk]
        rows = [(1, start, mine * 2), (0, start, mine), (2, start, mine[:1])]
        parts.append(attend(pages, 9, rows, window=window, threads=2, heads=3)[len(mine) : 2 * len(mine)])
    return np.concatenate(parts)
