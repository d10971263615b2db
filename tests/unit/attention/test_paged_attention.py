"""The fast backend against the plain one in float64, on random pages; NaN lies wherever nothing may be read."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_worker.attention.base import AttentionCaps, AttentionNeed, AttnBatch, KVSpec, NoAttentionBackend, select
from octavo_worker.attention.cpu import CpuAttention
from octavo_worker.attention.reference import ReferenceAttention

BLOCK = 16
LAYERS = 2

# (query heads, key-value heads, head dim): grouped, one to one, one for all, a group wider than a tile.
SHAPES = [(9, 3, 64), (4, 4, 16), (8, 1, 80), (40, 2, 96), (2, 2, 128)]


def make_world(rows, shape, seed=0):
    """(pool, batch, q, k, v) for rows of (start, number of fed tokens); the pool is NaN except for computed slots."""
    num_heads, num_kv_heads, head_dim = shape
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    counts = [-(-(start + count) // BLOCK) for start, count in rows]
    total = sum(counts) + 3
    order = iter(random.permutation(total).tolist())
    tables = np.full((len(rows), max(counts)), total - 1, np.int32)
    pool = torch.full((total, LAYERS, 2, BLOCK, num_kv_heads, head_dim), math.nan)
    slots = []
    for index, ((start, count), num_blocks) in enumerate(zip(rows, counts, strict=True)):
        tables[index, :num_blocks] = list(itertools.islice(order, num_blocks))
        for position in range(start):
            pool[tables[index, position // BLOCK], :, :, position % BLOCK] = torch.randn(
                LAYERS, 2, num_kv_heads, head_dim
            )
        slots += [int(tables[index, p // BLOCK]) * BLOCK + p % BLOCK for p in range(start, start + count)]
    batch = AttnBatch(
        starts_R=np.array([start for start, _ in rows], np.int32),
        num_tokens_R=np.array([count for _, count in rows], np.int32),
        tables_RB=tables,
        slots_T=np.array(slots, np.int64),
    )
    # q, k and v are views into one buffer, as a model with a fused projection passes them.
    fused = torch.randn(len(slots), num_heads + 2 * num_kv_heads, head_dim)
    q, k, v = fused.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return pool, batch, q, k, v


def make_cpu(shape, num_threads=1):
    num_heads, num_kv_heads, head_dim = shape
    return CpuAttention(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=BLOCK, num_threads=num_threads
    )


def run_cpu(world, shape, layer=1, num_threads=2, window=None):
    pool, batch, q, k, v = world
    backend = make_cpu(shape, num_threads)
    pool = pool.clone()
    plan = backend.plan(batch)
    return backend.attend(q, k, v, pool, plan, layer, window).clone(), pool


def run_reference(world, layer=1, window=None):
    pool, batch, q, k, v = world
    backend = ReferenceAttention(block_size=BLOCK)
    pool = pool.double()
    plan = backend.plan(batch)
    return backend.attend(q.double(), k.double(), v.double(), pool, plan, layer, window), pool


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1)],
        [(15, 1), (16, 1), (17, 1), (300, 1)],
        [(0, 40)],
        [(7, 40), (100, 3), (0, 1), (31, 2)],
    ],
)
def test_mixed_rows_match_the_reference(shape, rows):
    world = make_world(rows, shape)
    (out, pool), (expected, expected_pool) = run_cpu(world, shape), run_reference(world)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=3e-6)
    torch.testing.assert_close(pool.double(), expected_pool, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=6),
    shape=st.sampled_from(SHAPES),
    seed=st.integers(0, 2**16),
)
def test_any_rows_match_the_reference(rows, shape, seed):
    world = make_world(rows, shape, seed)
    torch.testing.assert_close(run_cpu(world, shape)[0].double(), run_reference(world)[0], rtol=0, atol=5e-6)


def test_a_row_gives_the_same_bits_alone_and_beside_others_and_on_any_number_of_threads():
    shape, rows = (9, 3, 64), [(40, 1), (3, 30), (200, 1), (17, 5)]
    pool, batch, q, k, v = make_world(rows, shape)
    together, _ = run_cpu((pool, batch, q, k, v), shape)
    firsts = np.cumsum([0, *batch.num_tokens_R])
    for row in range(len(rows)):
        part = slice(firsts[row], firsts[row + 1])
        alone = AttnBatch(
            starts_R=batch.starts_R[row : row + 1],
            num_tokens_R=batch.num_tokens_R[row : row + 1],
            tables_RB=batch.tables_RB[row : row + 1],
            slots_T=batch.slots_T[part],
        )
        out, _ = run_cpu((pool, alone, q[part], k[part], v[part]), shape, num_threads=1)
        assert torch.equal(out, together[part])


def test_a_prompt_gives_the_same_bits_whole_and_token_by_token():
    shape, length = (9, 3, 64), 50
    pool, batch, q, k, v = make_world([(0, length)], shape)
    whole, _ = run_cpu((pool, batch, q, k, v), shape)
    for start in range(length):
        step = AttnBatch(
            starts_R=np.array([start], np.int32),
            num_tokens_R=np.array([1], np.int32),
            tables_RB=batch.tables_RB,
            slots_T=batch.slots_T[start : start + 1],
        )
        part = slice(start, start + 1)
        out, pool = run_cpu((pool, step, q[part], k[part], v[part]), shape)
        assert torch.equal(out, whole[part])


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("shape", [(9, 3, 64), (40, 2, 96)])
def test_windows_match_an_attention_that_was_told_the_visible_keys(shape, window):
    rows = [(7, 40), (100, 3), (0, 1), (31, 2)]
    _, batch, q, _, _ = world = make_world(rows, shape)
    out, written = run_cpu(world, shape, window=window)
    torch.testing.assert_close(run_reference(world, window=window)[0], out.double(), rtol=0, atol=3e-6)
    first = 0
    for row, (start, count) in enumerate(rows):
        table = batch.tables_RB[row]
        k_SGH, v_SGH = (written[table, 1, i].flatten(0, 1).double() for i in (0, 1))
        for index in range(count):
            position = start + index
            seen = slice(max(0, position - window + 1), position + 1)
            query = q[first + index].double()[None, :, None]
            keys, values = (part[seen].transpose(0, 1)[None] for part in (k_SGH, v_SGH))
            expected = F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)[0, :, 0]
            torch.testing.assert_close(out[first + index].double(), expected, rtol=0, atol=3e-6)
        first += count


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=6),
    shape=st.sampled_from(SHAPES),
    window=st.integers(1, 80),
    seed=st.integers(0, 2**16),
)
def test_any_rows_with_any_window_match_the_reference(rows, shape, window, seed):
    world = make_world(rows, shape, seed)
    out, expected = (run(world, window=window)[0] for run in (partial(run_cpu, shape=shape), run_reference))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("window", [1, 7, 16, 20])
def test_a_prompt_behind_a_window_gives_the_same_bits_in_chunks_of_any_size(window):
    shape, length = (9, 3, 64), 70
    fresh, batch, q, k, v = make_world([(0, length)], shape)
    whole, _ = run_cpu((fresh, batch, q, k, v), shape, window=window)
    for size in (1, 3, 17, 32):
        pool = fresh
        for start in range(0, length, size):
            part = slice(start, min(length, start + size))
            step = AttnBatch(
                starts_R=np.array([start], np.int32),
                num_tokens_R=np.array([part.stop - start], np.int32),
                tables_RB=batch.tables_RB,
                slots_T=batch.slots_T[part],
            )
            out, pool = run_cpu((pool, step, q[part], k[part], v[part]), shape, window=window)
            assert torch.equal(out, whole[part])


def test_pages_wholly_before_the_window_are_not_read():
    shape, window = (9, 3, 64), 20
    pool, batch, q, k, v = make_world([(100, 1), (90, 8)], shape)
    expected, _ = run_cpu((pool, batch, q, k, v), shape, window=window)
    # The first token sees positions 81 to 100, and the others see from 71 on at least: pages 0 to 4, and 0 to 3.
    pool[batch.tables_RB[0, :5]] = math.nan
    pool[batch.tables_RB[1, :4]] = math.nan
    out, _ = run_cpu((pool, batch, q, k, v), shape, window=window)
    assert torch.equal(out, expected)


def test_a_window_that_hides_nothing_changes_no_bit():
    shape = (9, 3, 64)
    world = make_world([(7, 40), (100, 3), (0, 1)], shape)
    assert torch.equal(run_cpu(world, shape, window=103)[0], run_cpu(world, shape)[0])


def test_a_layer_is_not_touched_by_the_writes_of_another():
    shape = (4, 2, 32)
    world = make_world([(5, 3)], shape)
    _, pool = run_cpu(world, shape, layer=0)
    assert torch.equal(pool[:, 1].nan_to_num(7), world[0][:, 1].nan_to_num(7))


def test_nan_in_one_rows_keys_reaches_no_other_row():
    shape = (9, 3, 64)
    pool, batch, q, k, v = make_world([(20, 1), (20, 1)], shape)
    pool[batch.tables_RB[0, 0]] = math.nan
    out, _ = run_cpu((pool, batch, q, k, v), shape)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_large_scores_neither_overflow_nor_lose_the_peak(size):
    shape = (9, 3, 64)
    pool, batch, q, k, v = make_world([(33, 2)], shape)
    world = (pool, batch, q * size, k, v)
    torch.testing.assert_close(run_cpu(world, shape)[0].double(), run_reference(world)[0], rtol=0, atol=2e-3)


NEED = AttentionNeed(device="cpu", dtype="float32", num_heads=9, num_kv_heads=3, head_dim=64, block_size=16)


def backends():
    return [make_cpu((9, 3, 64)), ReferenceAttention(block_size=16)]


def test_the_first_backend_without_reasons_is_taken():
    assert select(backends(), NEED).name == "cpu"


def test_a_need_beyond_the_fast_backend_goes_to_the_next():
    need = AttentionNeed(device="cpu", dtype="float64", num_heads=9, num_kv_heads=3, head_dim=24, block_size=12)
    assert select(backends(), need).name == "reference"
    reasons = backends()[0].reasons_against(need)
    assert len(reasons) == 3, reasons


def test_sliding_windows_go_to_a_backend_that_serves_them():
    need = replace(NEED, sliding_window=True)
    assert select(backends(), need).name == "cpu"
    assert AttentionCaps().reasons_against(need) == ["sliding windows are not served"]
    assert AttentionCaps().reasons_against(NEED) == []


def test_when_nobody_can_serve_the_error_lists_every_reason():
    need = AttentionNeed(device="tpu", dtype="float16", num_heads=9, num_kv_heads=3, head_dim=64, block_size=16)
    with pytest.raises(NoAttentionBackend, match=r"cpu: device tpu .*; dtype float16"):
        select(backends()[:1], need)
    with pytest.raises(NoAttentionBackend, match="none is known"):
        select([], need)


def test_the_pool_keeps_one_block_of_all_layers_together():
    spec = KVSpec(num_blocks=7, num_layers=3, block_size=16, num_kv_heads=2, head_dim=8)
    assert all(backend.kv_shape(spec) == (7, 3, 2, 16, 2, 8) for backend in backends())
