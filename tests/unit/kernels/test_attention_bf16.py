"""Attention over bfloat16 pages: equal to float64 over torch's own rounding, and the same bits in any chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo_worker.attention.base import AttnBatch
from octavo_worker.attention.tiles import cut_tiles, visible_lengths
from octavo_worker.kernels import attend_bf16, attend_int8
from octavo_worker.kernels import attention_bf16 as kernel
from octavo_worker.kernels.amx_bf16 import has_amx_bf16
from octavo_worker.kernels.program import Program

LAYERS, LAYER = 3, 1
SHAPES = [(4, 2, 64), (3, 3, 16), (9, 3, 64), (2, 1, 80), (4, 1, 128), (6, 2, 96)]


class Pages:
    """A pool whose free pages are poison, and tables that jump about in it."""

    def __init__(self, num_kv_heads: int, head_dim: int, num_blocks: int = 40) -> None:
        self.heads, self.dim = num_kv_heads, head_dim
        self.memory = np.full((num_blocks, LAYERS * kernel.layer_bytes(num_kv_heads, head_dim)), 255, np.uint8)
        self.order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)

    def table(self, row: int, num_blocks: int) -> np.ndarray:
        return self.order[10 * row : 10 * row + num_blocks]


def rounded(x: np.ndarray) -> np.ndarray:
    """To bfloat16 and back, by torch."""
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().double().numpy()


def attend(pages: Pages, num_heads: int, rows, *, window=None, threads=1, heads=1) -> np.ndarray:
    """Feed (row, start, qkv [n, N + 2 G, H]) for some rows; returns [T, N, H]."""
    qkv = np.concatenate([part for _, _, part in rows]).astype(np.float32)
    num_tokens, width = len(qkv), qkv[0].size
    out = np.full((num_tokens, num_heads, pages.dim), np.nan, np.float32)
    stage = kernel.attention_stage(
        qkv=qkv.ctypes.data, qkv_stride=width, pool=pages.memory.ctypes.data, num_layers=LAYERS, layer=LAYER,
        num_heads=num_heads, num_kv_heads=pages.heads, head_dim=pages.dim, out=out.ctypes.data,
        out_stride=num_heads * pages.dim, window=window,
    )  # fmt: skip
    program = Program([stage])
    starts = np.array([start for _, start, _ in rows], np.int32)
    counts = np.array([len(part) for _, _, part in rows], np.int32)
    num_blocks = -(-int((starts + counts).max()) // 16)
    tables = np.stack([pages.table(row, num_blocks) for row, _, _ in rows])
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, counts, strict=True)])
    slots = tables[np.repeat(np.arange(len(rows)), counts), positions // 16].astype(np.int64) * 16 + positions % 16
    batch = AttnBatch(starts_R=starts, num_tokens_R=counts, tables_RB=tables, slots_T=slots)
    tiles, limits = cut_tiles(batch, num_heads // pages.heads), visible_lengths(batch)
    size = heads * attend_bf16.scratch_bytes(int(limits.max()), pages.dim)
    scratch = np.full(threads * size, 255, np.uint8)
    frame = program.frame
    frame[attend_int8.TILES], frame[attend_int8.NUM_TILES] = tiles.ctypes.data, len(tiles)
    frame[attend_int8.TABLES], frame[attend_int8.TABLE_STRIDE] = tables.ctypes.data, num_blocks
    frame[attend_int8.LIMITS], frame[attend_int8.SLOTS] = limits.ctypes.data, slots.ctypes.data
    frame[attend_int8.SCRATCH], frame[attend_int8.SCRATCH_BYTES] = scratch.ctypes.data, size
    frame[attend_int8.HEADS_AT_ONCE] = heads
    program.run(num_tokens, threads)
    return out


def expected(qkv: np.ndarray, num_heads: int, num_kv_heads: int, position: int, window=None) -> np.ndarray:
    """Float64 attention of one token of a sequence over rounded queries, keys and values."""
    first = 0 if window is None else max(0, position + 1 - window)
    seen, group = rounded(qkv), num_heads // num_kv_heads
    keys = seen[first : position + 1, num_heads : num_heads + num_kv_heads]
    values = seen[first : position + 1, num_heads + num_kv_heads :]
    heads = []
    for head in range(num_heads):
        scores = keys[:, head // group] @ seen[position, head] / np.sqrt(qkv.shape[2])
        weights = np.exp(scores - scores.max())
        heads.append(weights @ values[:, head // group] / weights.sum())
    return np.stack(heads)


@pytest.mark.parametrize("window", [None, 5, 20])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_mixed_rows_equal_float64_over_rounded_numbers(num_heads, num_kv_heads, head_dim, window) -> None:
    random, pages = np.random.default_rng(1), Pages(num_kv_heads, head_dim)
    long, short, third = random.standard_normal((3, 64, num_heads + 2 * num_kv_heads, head_dim)).astype(np.float32)
    attend(pages, num_heads, [(0, 0, long[:63])])
    rows = [(0, 63, long[63:]), (1, 0, short[:37]), (2, 0, third[:1])]
    found = attend(pages, num_heads, rows, window=window, threads=2, heads=num_kv_heads)
    at = 0
    for sequence, (_, start, part) in zip((long, short, third), rows, strict=True):
        for position in range(start, start + len(part)):
            wanted = expected(sequence, num_heads, num_kv_heads, position, window)
            # The weights are rounded too: to 2**-9 each, and values are about 1.
            assert np.abs(found[at] - wanted).max() < 8e-3
            at += 1


@pytest.mark.parametrize("window", [None, 20])
def test_a_token_has_the_same_bits_in_any_chunks_and_company(window) -> None:
    random = np.random.default_rng(3)
    qkv = random.standard_normal((70, 9 + 6, 64)).astype(np.float32)
    whole = attend(Pages(3, 64), 9, [(0, 0, qkv)], window=window)
    for chunk in (1, 3, 16, 17, 64):
        pages, parts = Pages(3, 64), []
        for start in range(0, 70, chunk):
            others = [(1, start, qkv[start : start + chunk] * 2), (2, start, qkv[start : start + 1])]
            rows = [others[0], (0, start, qkv[start : start + chunk]), others[1]]
            size = len(qkv[start : start + chunk])
            parts.append(attend(pages, 9, rows, window=window, threads=2, heads=3)[size : 2 * size])
        assert np.array_equal(np.concatenate(parts).view(np.uint32), whole.view(np.uint32)), chunk


@pytest.mark.skipif(not has_amx_bf16(), reason="the processor has no matrix unit for bfloat16")
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 128), (1, 1, 96), (4, 2, 32)])
def test_the_matrix_unit_gives_the_bits_of_the_vectors(num_heads, num_kv_heads, head_dim, window, monkeypatch) -> None:
    width = num_heads + 2 * num_kv_heads
    # Some of them so small that products are subnormal.
    sizes = np.exp(4 * np.random.default_rng(7).standard_normal((75, width, 1)) - 4).astype(np.float32)
    qkv = sizes * np.random.default_rng(6).standard_normal((75, width, head_dim)).astype(np.float32)
    qkv[::3] *= np.float32(1e-25)
    found = []
    for use in (True, False):
        monkeypatch.setattr(kernel, "has_amx_bf16", lambda use=use: use)
        found.append(attend(Pages(num_kv_heads, head_dim), num_heads, [(0, 0, qkv)], window=window))
    assert np.isfinite(found[0]).all()
    assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


def test_what_is_no_number_spoils_only_who_sees_it() -> None:
    qkv = np.random.default_rng(8).standard_normal((40, 4 + 4, 64)).astype(np.float32)
    qkv[30, 4:] = np.nan
    pages = Pages(2, 64)
    first = attend(pages, 4, [(0, 0, qkv[:30])])
    rest = attend(pages, 4, [(0, 30, qkv[30:])])
    assert np.isfinite(first).all() and np.isnan(rest).all()
