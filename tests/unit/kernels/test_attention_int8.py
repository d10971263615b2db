"""Attention over int8 pages: equal to float64 softmax over what the pool holds, and the same bits in any chunks."""

from __future__ import annotations

import numpy as np
import pytest
from attention_pages import LAYER, LAYERS, Pages, attend, chunks_and_company

from octavo_worker.kernels import attention_int8 as kernel
from octavo_worker.kernels.positions import ROTATIONS, place_stage
from octavo_worker.kernels.program import Program
from octavo_worker.runtime.integer_arithmetic import IntegerArithmetic

ATTENTION = IntegerArithmetic.attention
SHAPES = [(4, 2, 64), (3, 3, 16), (9, 3, 64), (2, 1, 80), (4, 1, 128)]


def content(pages: Pages, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a block, float64 [16, G, H], by the layout that the kernel's page describes."""
    per_layer = kernel.layer_bytes(pages.heads, pages.dim)
    region = pages.memory[block]
    parts = region[LAYER * per_layer : (LAYER + 1) * per_layer].reshape(2, pages.heads, -1)
    keys = parts[0].reshape(pages.heads, pages.dim // 4, 16, 4).astype(np.float64) - 128
    keys = keys.transpose(2, 0, 1, 3).reshape(16, pages.heads, pages.dim)
    values = parts[1].view(np.int8).reshape(pages.heads, 4, pages.dim, 4).astype(np.float64)
    values = values.transpose(1, 3, 0, 2).reshape(16, pages.heads, pages.dim)
    at = LAYERS * per_layer + LAYER * kernel.layer_scale_bytes(pages.heads)
    scales = region[at : at + kernel.layer_scale_bytes(pages.heads)].view(np.float32).reshape(2, pages.heads, 16)
    return keys * scales[0].T[:, :, None], values * scales[1].T[:, :, None]


def mixing(head_dim: int) -> np.ndarray:
    """The orthogonal matrix of the stored values: Sylvester's, in blocks of the largest power of 2 that 16s allow."""
    size, matrix = 1, np.ones((1, 1))
    while size < 16 or head_dim % (2 * size) == 0:
        size, matrix = 2 * size, np.kron([[1, 1], [1, -1]], matrix) / np.sqrt(2)
    return np.kron(np.eye(head_dim // size), matrix)


def expected(pages: Pages, num_heads: int, row: int, query: np.ndarray, position: int, window=None) -> np.ndarray:
    """Float64 attention of one token over what the pool holds."""
    blocks = [content(pages, int(block)) for block in pages.table(row, position // 16 + 1)]
    first = 0 if window is None else max(0, position + 1 - window)
    keys, values = (np.concatenate(part)[first : position + 1] for part in zip(*blocks, strict=True))
    group = num_heads // pages.heads
    heads = []
    for head in range(num_heads):
        scores = keys[:, head // group] @ query[head].astype(np.float64) / np.sqrt(pages.dim)
        weights = np.exp(scores - scores.max())
        heads.append(weights @ values[:, head // group] @ mixing(pages.dim) / weights.sum())
    return np.stack(heads)


@pytest.mark.parametrize("window", [None, 5, 20])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
def test_mixed_rows_equal_float64_over_the_pools_own_numbers(num_heads, num_kv_heads, head_dim, window) -> None:
    random, pages = np.random.default_rng(1), Pages(ATTENTION, num_kv_heads, head_dim)
    width = num_heads + 2 * num_kv_heads
    long, short = random.standard_normal((2, 90, width, head_dim)).astype(np.float32)
    attend(pages, num_heads, [(0, 0, long[:63])])
    rows = [(0, 63, long[63:64]), (1, 0, short[:37]), (2, 0, long[80:81])]
    found = attend(pages, num_heads, rows, window=window, threads=2, heads=num_kv_heads)
    at = 0
    for row, start, part in rows:
        for offset, token in enumerate(part):
            wanted = expected(pages, num_heads, row, token[:num_heads], start + offset, window)
            # 15 bits of a query, 23 of everything else.
            assert np.abs(found[at] - wanted).max() < 3e-4
            at += 1


def test_keys_and_values_are_stored_to_half_a_step() -> None:
    random, pages = np.random.default_rng(2), Pages(ATTENTION, 2, 64)
    qkv = random.standard_normal((20, 4 + 4, 64)).astype(np.float32)
    attend(pages, 4, [(0, 0, qkv)])
    blocks = [content(pages, int(block)) for block in pages.table(0, 2)]
    for stored, given in zip(zip(*blocks, strict=True), (qkv[:, 4:6], qkv[:, 6:8]), strict=True):
        step = np.abs(given).max(axis=2, keepdims=True) / 127
        assert np.all(np.abs(np.concatenate(stored)[:20] - given) <= 0.501 * step)


@pytest.mark.parametrize("window", [None, 20])
def test_a_token_has_the_same_bits_in_any_chunks_and_company(window) -> None:
    random = np.random.default_rng(3)
    qkv = random.standard_normal((70, 9 + 6, 64)).astype(np.float32)
    whole = attend(Pages(ATTENTION, 3, 64), 9, [(0, 0, qkv)], window=window)
    for chunk in (1, 3, 16, 17, 64):
        parts = chunks_and_company(ATTENTION, qkv, chunk, window)
        assert np.array_equal(parts.view(np.uint32), whole.view(np.uint32)), chunk


@pytest.mark.amx
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 128), (1, 1, 64)])
def test_the_matrix_unit_gives_the_bits_of_the_vectors(num_heads, num_kv_heads, head_dim, window, monkeypatch) -> None:
    width = num_heads + 2 * num_kv_heads
    qkv = np.random.default_rng(6).standard_normal((75, width, head_dim)).astype(np.float32)
    by_tiles = attend(Pages(ATTENTION, num_kv_heads, head_dim), num_heads, [(0, 0, qkv)], window=window)
    monkeypatch.setattr(kernel, "has_amx", lambda: False)
    by_pages = attend(Pages(ATTENTION, num_kv_heads, head_dim), num_heads, [(0, 0, qkv)], window=window)
    assert np.array_equal(by_tiles.view(np.uint32), by_pages.view(np.uint32))


@pytest.mark.parametrize("head_dim", [16, 64])
def test_the_sum_of_very_many_equal_values_does_not_overflow(head_dim) -> None:
    num_keys = 69_984
    pages = Pages(ATTENTION, 1, head_dim, num_blocks=num_keys // 16 + 1)
    pages.table = lambda row, num_blocks: np.arange(num_blocks, dtype=np.int32)
    qkv = np.zeros((num_keys, 2 + 2, head_dim), np.float32)
    qkv[:, 3] = 1
    for start in range(0, num_keys, 8_748):
        # What the queries find does not matter yet: without a key in sight but their own they cost little.
        attend(pages, 2, [(0, start, qkv[start : start + 8_748])], window=1)
    found = attend(pages, 2, [(0, num_keys, qkv[:8])])
    assert np.abs(found - mixing(head_dim).sum(axis=0)).max() < 1e-5


def test_a_key_that_is_no_number_spoils_only_who_sees_it() -> None:
    qkv = np.random.default_rng(4).standard_normal((20, 2 + 2, 16)).astype(np.float32)
    qkv[10, 2, 3] = np.nan
    found = attend(Pages(ATTENTION, 1, 16), 2, [(0, 0, qkv)])
    assert np.isfinite(found[:10]).all()
    assert np.isnan(found[10:]).all()


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
def test_placing_leaves_scores_as_they_are_but_for_a_constant(head_dim) -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((6, 4, head_dim)).astype(np.float32)
    before = x.astype(np.float64)
    mean, angles = random.standard_normal((1, head_dim)).astype(np.float32), random.random((6, head_dim // 2))
    turns = np.stack([np.cos(angles), np.sin(angles)], axis=2).astype(np.float32)
    stage = place_stage(
        x=x.ctypes.data, stride=4 * head_dim, num_heads=2, num_kv_heads=1, head_dim=head_dim,
        num_pairs=head_dim // 2, k_mean=mean.ctypes.data,
    )  # fmt: skip
    program = Program([stage])
    program.frame[ROTATIONS] = turns.ctypes.data
    program.run(6, 2)
    pairs = (before[:, :3].reshape(6, 3, -1, 2) * [1, 1j]).sum(axis=3) * np.exp(1j * angles)[:, None]
    wanted = np.einsum("qhd,kd->qhk", pairs[:, :2], pairs[:, 2].conj()).real
    found = np.einsum("qhd,kd->qhk", x[:, :2].astype(np.float64), x[:, 2].astype(np.float64))
    # All scores of a query move by the same number.
    moved = found - wanted
    assert np.abs(moved - moved[:, :, :1]).max() < 1e-4
    assert np.abs(x[:, 3] - before[:, 3] @ mixing(head_dim)).max() < 1e-5
