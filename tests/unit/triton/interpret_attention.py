"""Attention over pages in Triton's interpreter: decode parts, their join, and mixed rows, against float64.

Outputs and parts hold NaN before each run; so do free pages.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton_world import BLOCK, DTYPES, LAYER, SOME, TOLERANCE, Row, expected, make_world

from octavo_worker.attention.base import AttnBatch
from octavo_worker.attention.triton_paged import TritonAttention
from octavo_worker.kernels.triton.combine import combine
from octavo_worker.kernels.triton.decode_attention import SPLIT_KEYS, decode_attention, num_splits
from octavo_worker.kernels.triton.extend_attention import extend_attention
from octavo_worker.kernels.triton.pages import KVFormat

# (query heads, key-value heads, head dim): grouped, one for all, one to one; every head dim.
SHAPES = [(6, 2, 64), (3, 1, 80), (2, 2, 96), (8, 1, 128), (4, 2, 256)]
# Around the borders of pages, tiles of keys and parts.
CONTEXTS = st.one_of(st.sampled_from([0, 14, 15, 16, 63, 64, 255, 256, 257]), st.integers(0, 300))
WINDOWS = st.sampled_from([None, None, 1, 17, 256])


@st.composite
def trees(draw):
    size = draw(st.integers(0, 6))
    return tuple(draw(st.integers(-1, node - 1)) for node in range(size))


@st.composite
def mixed_rows(draw):
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        parents = draw(trees())
        chain = draw(st.sampled_from([1, 1, 2, 15, 16, 17, 33]))
        rows.append(Row(start=draw(CONTEXTS), count=chain + len(parents), parents=parents))
    return rows


def make_backend(shape, dtype, format=KVFormat.PLAIN):
    num_heads, num_kv_heads, head_dim = shape
    return TritonAttention(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=BLOCK,
        dtype=dtype,
        kv_format=format,
    )


def make_plan(world, shape):
    batch = AttnBatch(starts_R=world.starts, num_tokens_R=world.counts, tables_RB=world.tables, slots_T=world.slots)
    return make_backend(shape, world.q.dtype, world.kv.format).plan(batch, world.trees)


def run_kernels(world, shape, window=None):
    """Results `[T, N, H]` of the three kernels, on memory full of NaN."""
    plan = make_plan(world, shape)
    out = torch.full(world.q.shape, math.nan, dtype=world.q.dtype)
    num_rows, num_parts = plan.entries_D2.shape[0], plan.num_parts + 1
    if plan.extend is not None:
        extend_attention(world.q, world.kv, LAYER, plan.extend, out, window=window)
    if num_rows:
        parts = torch.full((num_rows, shape[0], num_parts, shape[2]), math.nan)
        lse = torch.full((num_rows, shape[0], num_parts), math.nan)
        common = {"entries_D2": plan.entries_D2, "limits_T": plan.limits_T, "window": window}
        decode_attention(world.q, world.kv, LAYER, tables_RB=plan.tables_RB, out_DNCH=parts, lse_DNC=lse, **common)
        combine(parts, lse, out_TNH=out, **common)
    return out


def check(world, shape, window=None):
    found, wanted = run_kernels(world, shape, window).double(), expected(world, window)
    torch.testing.assert_close(found, wanted, rtol=TOLERANCE[world.q.dtype] / 3, atol=TOLERANCE[world.q.dtype])


@SOME
@given(
    starts=st.lists(CONTEXTS, min_size=1, max_size=4),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    format=st.sampled_from(list(KVFormat)),
    window=WINDOWS,
    seed=st.integers(0, 2**16),
)
def test_rows_of_one_token_match_float64(starts, shape, dtype, format, window, seed):
    check(make_world([Row(start=s, count=1) for s in starts], shape, dtype, format, seed=seed), shape, window)


@SOME
@given(
    rows=mixed_rows(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    format=st.sampled_from(list(KVFormat)),
    window=WINDOWS,
    seed=st.integers(0, 2**16),
)
def test_mixed_rows_match_float64_causal_and_by_tree(rows, shape, dtype, format, window, seed):
    check(make_world(rows, shape, dtype, format, seed=seed), shape, window)


@pytest.mark.parametrize("count", [1, 5])
def test_4096_tokens_match_float64(count):
    shape = (2, 1, 64)
    check(make_world([Row(start=4096 - count, count=count), Row(start=3, count=1)], shape, torch.float16), shape)


def test_a_tree_of_63_nodes_is_served_and_64_are_refused():
    shape, parents = (2, 1, 64), tuple(node // 2 - 1 for node in range(63))
    check(make_world([Row(start=20, count=64, parents=parents)], shape), shape)
    with pytest.raises(ValueError, match="a tree has 64 nodes, 63 are the most"):
        make_plan(make_world([Row(start=20, count=65, parents=(*parents, 0))], shape), shape)


def test_a_node_sees_its_ancestors_whatever_the_window():
    """The last tile holds nodes only, whose window begins behind their ancestors."""
    shape = (8, 1, 128)
    check(make_world([Row(start=0, count=17, parents=(-1, 0))], shape), shape, window=1)


def test_a_chain_of_drafts_is_a_prompt():
    """The tree mask of a chain gives the bits of the causal mask."""
    shape = (6, 2, 64)
    chain = make_world([Row(start=37, count=7)], shape)
    tree = make_world([Row(start=37, count=7, parents=(-1, 0, 1, 2, 3, 4))], shape)
    assert torch.equal(run_kernels(chain, shape), run_kernels(tree, shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_gives_the_same_bits_alone_and_beside_others(dtype):
    shape = (6, 2, 64)
    rows = [Row(start=300, count=1), Row(start=40, count=9), Row(start=7, count=1), Row(start=0, count=70)]
    world = make_world(rows, shape, dtype)
    together, first = run_kernels(world, shape), 0
    for index, row in enumerate(rows):
        part = slice(first, first + row.count)
        alone = type(world)(
            rows=(row,),
            pool=world.pool,
            kv=world.kv,
            q=world.q[part],
            k=world.k[part],
            v=world.v[part],
            tables=world.tables[index : index + 1],
            slots=world.slots[part],
        )
        assert torch.equal(run_kernels(alone, shape), together[part])
        first += row.count


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_scores_neither_overflow_nor_lose_the_peak(size):
    shape = (2, 1, 64)
    world = make_world([Row(start=33, count=2), Row(start=300, count=1)], shape)
    world.q.mul_(size)
    torch.testing.assert_close(run_kernels(world, shape).double(), expected(world), rtol=0, atol=2e-3)


def test_the_join_of_parts_reads_only_what_a_row_reached():
    torch.manual_seed(0)
    # Parts of a window that begins in part 1: parts 0 and 3 are NaN.
    parts, lse = torch.randn(1, 2, 4, 80), torch.randn(1, 2, 4) * 20
    parts[:, :, [0, 3]], lse[:, :, [0, 3]] = math.nan, math.nan
    out = torch.full((3, 2, 80), math.nan)
    limit = 2 * SPLIT_KEYS + 5
    combine(
        parts,
        lse,
        entries_D2=torch.tensor([[0, 1]], dtype=torch.int32),
        limits_T=torch.tensor([0, limit, 0], dtype=torch.int32),
        out_TNH=out,
        window=SPLIT_KEYS + 1,
    )
    weights = (lse[0, :, 1:3].double() * math.log(2)).softmax(-1)
    wanted = torch.einsum("nc,nch->nh", weights, parts[0, :, 1:3].double())
    torch.testing.assert_close(out[1].double(), wanted, rtol=0, atol=1e-6)
    assert out[[0, 2]].isnan().all()
    assert num_splits(limit) == 3


def test_rows_that_see_nothing_give_zeros():
    """Padding of a captured batch."""
    shape = (6, 2, 64)
    world = make_world([Row(start=20, count=1)], shape)
    plan = make_backend(shape, torch.float32).padded_plan(num_rows=3, num_blocks=4, num_parts=2)
    parts, lse = torch.full((3, 6, 2, 64), math.nan), torch.full((3, 6, 2), math.nan)
    out, q = torch.full((3, 6, 64), math.nan), torch.randn(3, 6, 64)
    common = {"entries_D2": plan.entries_D2, "limits_T": plan.limits_T}
    decode_attention(q, world.kv, LAYER, tables_RB=plan.tables_RB, out_DNCH=parts, lse_DNC=lse, **common)
    combine(parts, lse, out_TNH=out, **common)
    assert torch.equal(out, torch.zeros_like(out))


def test_wrong_arguments_are_refused_with_words():
    shape = (6, 2, 64)
    world = make_world([Row(start=20, count=1), Row(start=0, count=3)], shape)
    plan = make_plan(world, shape)
    parts, lse, out = torch.empty(1, 6, 1, 64), torch.empty(1, 6, 1), torch.empty_like(world.q)
    common = {"entries_D2": plan.entries_D2, "limits_T": plan.limits_T}
    decode = {**common, "tables_RB": plan.tables_RB, "out_DNCH": parts, "lse_DNC": lse}
    with pytest.raises(ValueError, match=r"q is torch.float16, the pool torch.float32"):
        decode_attention(world.q.half(), world.kv, LAYER, **decode)
    with pytest.raises(ValueError, match="5 query heads do not share 2"):
        decode_attention(world.q[:, :5], world.kv, LAYER, **{**decode, "out_DNCH": parts[:, :5], "lse_DNC": lse[:, :5]})
    with pytest.raises(ValueError, match=r"lse has shape \(1, 5, 1\), not \(1, 6, 1\)"):
        combine(parts, lse[:, :5], out_TNH=out, **common)
    with pytest.raises(ValueError, match="a window holds at least one key"):
        extend_attention(world.q, world.kv, LAYER, plan.extend, out, window=0)
    with pytest.raises(ValueError, match="layer 9 is not one of 2"):
        extend_attention(world.q, world.kv, 9, plan.extend, out)
    assert np.all(world.counts == [1, 3])
