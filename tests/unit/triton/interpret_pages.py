"""Writing and copying pages, in Triton's interpreter: against torch's own conversions, bit by bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton_world import BLOCK, DTYPES, LAYER, SOME, encode, poisoned_pool

from octavo_worker.kernels.triton.copy_blocks import copy_blocks
from octavo_worker.kernels.triton.launch import is_interpreted
from octavo_worker.kernels.triton.pages import KVFormat, region_bytes, view_pages
from octavo_worker.kernels.triton.write_kv import write_kv

SHAPES = st.tuples(st.sampled_from([1, 2, 3, 8]), st.sampled_from([64, 80, 96, 128, 256]))


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def test_the_interpreter_is_on():
    assert is_interpreted()


@SOME
@given(
    heads=SHAPES,
    dtype=st.sampled_from(DTYPES),
    format=st.sampled_from(list(KVFormat)),
    slots=st.lists(st.integers(-1, 4 * BLOCK - 1), min_size=1, max_size=6, unique=True),
    size=st.sampled_from([1e-4, 1.0, 300.0]),
    seed=st.integers(0, 2**16),
)
def test_tokens_reach_their_slots_and_nothing_else_changes(heads, dtype, format, slots, size, seed):
    num_kv_heads, head_dim = heads
    torch.manual_seed(seed)
    pool, kv = poisoned_pool(5, (0, *heads), dtype, format)
    wanted, wanted_kv = poisoned_pool(5, (0, *heads), dtype, format)
    fused = (torch.randn(len(slots), 2 * num_kv_heads + 1, head_dim) * size).to(dtype)
    fused[0] = 0.0
    k, v = fused[:, :num_kv_heads], fused[:, num_kv_heads : 2 * num_kv_heads]
    for token, slot in enumerate(slots):
        for index, x in enumerate((k[token], v[token])):
            if slot >= 0 and kv.scales is None:
                wanted_kv.codes[slot // BLOCK, LAYER, index, slot % BLOCK] = x
            elif slot >= 0:
                codes, scales = encode(x, format)
                wanted_kv.codes[slot // BLOCK, LAYER, index, slot % BLOCK] = codes
                wanted_kv.scales[slot // BLOCK, LAYER, index, slot % BLOCK] = scales
    write_kv(k, v, torch.tensor(slots), kv, LAYER)
    assert torch.equal(bits(pool), bits(wanted))


@pytest.mark.parametrize("format", [f for f in KVFormat if f is not KVFormat.PLAIN])
def test_codes_of_a_byte_lose_what_their_format_loses(format):
    torch.manual_seed(0)
    _, kv = poisoned_pool(2, (0, 2, 64), torch.float32, format)
    k = torch.randn(20, 2, 64)
    write_kv(k, k, torch.arange(20), kv, LAYER)
    found = kv.codes[:, LAYER, 0].float() * kv.scales[:, LAYER, 0, ..., None]
    error = (found.flatten(0, 1)[:20] - k).abs()
    largest = k.abs().amax(-1, keepdim=True)
    if format is KVFormat.INT8:
        assert (error <= largest / 254 * 1.001).all()
    else:
        step = 2.0 ** -(4 if format is KVFormat.FP8_E4M3 else 3)
        assert (error <= k.abs() * step + largest * 1e-4).all()


@SOME
@given(
    dtype=st.sampled_from(DTYPES),
    format=st.sampled_from(list(KVFormat)),
    heads=SHAPES,
    order=st.permutations(range(7)),
    num_pairs=st.integers(0, 3),
)
def test_copied_blocks_are_equal_and_others_are_left_alone(dtype, format, heads, order, num_pairs):
    pool, _ = poisoned_pool(7, (0, *heads), dtype, format)
    bits(pool).random_()
    wanted = pool.clone()
    pairs = torch.tensor([order[2 * i : 2 * i + 2] for i in range(num_pairs)], dtype=torch.int64).view(-1, 2)
    for source, target in pairs.tolist():
        wanted[target] = pool[source]
    copy_blocks(pool, pairs)
    assert torch.equal(bits(pool), bits(wanted))


def test_a_region_holds_codes_then_scales_and_is_aligned():
    sizes = {"num_layers": 3, "block_size": BLOCK, "num_kv_heads": 3, "head_dim": 80}
    size = region_bytes(KVFormat.INT8, **sizes)
    assert size == 3 * 2 * BLOCK * 3 * (80 + 4)
    pool = torch.zeros(4, size, dtype=torch.uint8)
    kv = view_pages(pool, KVFormat.INT8, **sizes)
    kv.codes[2, 1, 1, 5, 2, 79], kv.scales[2, 2, 1, 15, 2] = -3, 1.5
    assert pool[2, (((1 * 2 + 1) * BLOCK + 5) * 3 + 2) * 80 + 79] == 253
    assert pool[2, -4:].view(torch.float32).item() == 1.5
    assert kv.format is KVFormat.INT8


def test_wrong_arguments_are_refused_with_words():
    _, kv = poisoned_pool(2, (0, 2, 64), torch.float32, KVFormat.PLAIN)
    k, slots = torch.zeros(3, 2, 64), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"v has shape \(3, 1, 64\), not \(3, 2, 64\)"):
        write_kv(k, k[:, :1], slots, kv, 0)
    with pytest.raises(ValueError, match=r"slots is torch.int32"):
        write_kv(k, k, slots.int(), kv, 0)
    with pytest.raises(ValueError, match="layer 2 is not one of 2"):
        write_kv(k, k, slots, kv, 2)
    with pytest.raises(ValueError, match="not dense"):
        write_kv(k.transpose(1, 2).contiguous().transpose(1, 2), k, slots, kv, 0)
    with pytest.raises(ValueError, match="not whole words"):
        copy_blocks(torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="not dense bytes"):
        view_pages(torch.zeros(2, 9), KVFormat.INT8, num_layers=1, block_size=BLOCK, num_kv_heads=1, head_dim=64)
    assert math.isnan(kv.codes[0, 0, 0, 0, 0, 0])
