"""Attention over bfloat16 pages: equal to float64 over torch's own rounding, and the same bits in any chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_pages import Pages, attend, chunks_and_company

from octavo_worker.kernels import attention_bf16 as kernel
from octavo_worker.runtime.short_arithmetic import ShortArithmetic

ATTENTION = ShortArithmetic.attention
SHAPES = [(4, 2, 64), (3, 3, 16), (9, 3, 64), (2, 1, 80), (4, 1, 128), (6, 2, 96)]


def rounded(x: np.ndarray) -> np.ndarray:
    """To bfloat16 and back, by torch."""
    return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().double().numpy()


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
    random, pages = np.random.default_rng(1), Pages(ATTENTION, num_kv_heads, head_dim)
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
    whole = attend(Pages(ATTENTION, 3, 64), 9, [(0, 0, qkv)], window=window)
    for chunk in (1, 3, 16, 17, 64):
        parts = chunks_and_company(ATTENTION, qkv, chunk, window)
        assert np.array_equal(parts.view(np.uint32), whole.view(np.uint32)), chunk


@pytest.mark.amx
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
        found.append(attend(Pages(ATTENTION, num_kv_heads, head_dim), num_heads, [(0, 0, qkv)], window=window))
    assert np.isfinite(found[0]).all()
    assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


def test_what_is_no_number_spoils_only_who_sees_it() -> None:
    qkv = np.random.default_rng(8).standard_normal((40, 4 + 4, 64)).astype(np.float32)
    qkv[30, 4:] = np.nan
    pages = Pages(ATTENTION, 2, 64)
    first = attend(pages, 4, [(0, 0, qkv[:30])])
    rest = attend(pages, 4, [(0, 30, qkv[30:])])
    assert np.isfinite(first).all() and np.isnan(rest).all()
