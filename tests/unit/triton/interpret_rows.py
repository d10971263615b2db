"""Norms, rotations, gates and draws, in Triton's interpreter, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from triton_world import DTYPES, SOME

from octavo_worker.kernels.triton.gumbel_argmax import gumbel_argmax
from octavo_worker.kernels.triton.head_norm import head_norm
from octavo_worker.kernels.triton.rms_norm import rms_norm, rms_norm_launch
from octavo_worker.kernels.triton.rotary import rotary
from octavo_worker.kernels.triton.silu_mul import silu_mul, silu_mul_launch
from octavo_worker.kernels.triton.softmax_stats import softmax_stats
from octavo_worker.models.base import RopeConfig
from octavo_worker.models.layers import Rope
from octavo_worker.verify.noise import Label, gumbels, noise_key

# A unit in the last place, relative: bfloat16 is cut off by the interpreter.
RELATIVE = {torch.float32: 3e-6, torch.float16: 1.1e-3, torch.bfloat16: 9e-3}
ROWS, WIDTHS = st.integers(1, 5), st.sampled_from([1, 48, 64, 576, 1500])
SEEDS = st.integers(0, 2**16)


def close(found, wanted, dtype, *, passes=1.0):
    scale = wanted.abs().clamp(min=1e-3)
    assert not found.isnan().any()
    assert ((found.double() - wanted).abs() <= passes * RELATIVE[dtype] * scale).all()


@SOME
@given(
    num_rows=ROWS,
    width=WIDTHS,
    dtype=st.sampled_from(DTYPES),
    size=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    residual=st.booleans(),
    seed=SEEDS,
)
def test_norms_match_float64_with_and_without_a_residual(num_rows, width, dtype, size, residual, seed):
    torch.manual_seed(seed)
    # Rows of a wider buffer, as a model may pass them.
    x = (torch.randn(num_rows, width + 3) * size).to(dtype)[:, :width]
    weight = torch.randn(width).to(dtype)
    stream = torch.randn(num_rows, width).to(dtype) if residual else None
    total = x.double() if stream is None else x.double() + stream.double()
    out = torch.full((num_rows, width), math.nan, dtype=dtype)
    rms_norm_launch(x, weight, 1e-5, out, stream).run()
    if stream is not None:
        # Two numbers may cancel: the sum is as exact as its larger part.
        largest = torch.maximum(x.double().abs(), total.abs()) + 1
        assert ((stream.double() - total).abs() <= RELATIVE[dtype] * largest).all()
        total = stream.double()
    close(out, F.rms_norm(total, (width,), weight.double(), 1e-5), dtype, passes=2)


@SOME
@given(
    num_tokens=st.integers(1, 4),
    num_heads=st.integers(1, 70),
    head_dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    seed=SEEDS,
)
def test_heads_are_normalised_each_with_its_own_weight(num_tokens, num_heads, head_dim, dtype, seed):
    torch.manual_seed(seed)
    buffer = torch.randn(num_tokens, num_heads + 2, head_dim).to(dtype)
    weight = torch.randn(num_heads, head_dim)
    before = buffer.double().clone()
    head_norm(buffer[:, :num_heads], weight, 1e-6)
    wanted = F.rms_norm(before[:, :num_heads], (head_dim,), eps=1e-6) * weight.double()
    close(buffer[:, :num_heads], wanted, dtype, passes=2)
    assert torch.equal(buffer[:, num_heads:].double(), before[:, num_heads:])


@SOME
@given(
    num_tokens=st.integers(1, 4),
    num_heads=st.integers(1, 5),
    dims=st.sampled_from([(64, 64), (80, 80), (80, 32), (96, 96), (128, 64), (256, 256)]),
    dtype=st.sampled_from(DTYPES),
    seed=SEEDS,
)
def test_heads_turn_as_the_models_rope_turns_them(num_tokens, num_heads, dims, dtype, seed):
    head_dim, rotated = dims
    torch.manual_seed(seed)
    table = Rope(RopeConfig(dim=rotated)).table(torch.randint(0, 5000, (num_tokens,)), None)
    buffer = torch.randn(num_tokens, num_heads + 2, head_dim).to(dtype)
    x, before = buffer[:, :num_heads], buffer.double().clone()
    wanted = before[:, :num_heads].clone()
    pairs = torch.view_as_complex(wanted[..., :rotated].unflatten(-1, (rotated // 2, 2)))
    pairs.mul_(table.to(torch.complex128))
    rotary(x, torch.view_as_real(table).squeeze(1))
    assert ((x.double() - wanted).abs() <= 2 * RELATIVE[dtype] * before.abs().max()).all()
    assert torch.equal(buffer[:, num_heads:].double(), before[:, num_heads:])
    assert torch.equal(x[..., rotated:].double(), before[:, :num_heads, rotated:])


@SOME
@given(num_rows=ROWS, width=WIDTHS, dtype=st.sampled_from(DTYPES), size=st.sampled_from([0.1, 8.0]), seed=SEEDS)
def test_gates_match_float64(num_rows, width, dtype, size, seed):
    torch.manual_seed(seed)
    both = (torch.randn(num_rows, 2 * width) * size).to(dtype)
    gate, up = both.double().chunk(2, dim=-1)
    out = torch.full((num_rows, width), math.nan, dtype=dtype)
    silu_mul_launch(both, out).run()
    close(out, F.silu(gate) * up, dtype, passes=2)


def test_gates_at_the_ends_of_the_range():
    ends = torch.tensor([[1e30, -1e6, 88.0, -88.0, 0.0, math.inf, math.nan, *[1.0] * 7]])
    found = silu_mul(ends)[0]
    assert found[:5].tolist() == pytest.approx([1e30, 0.0, 88.0, 0.0, 0.0], rel=1e-6, abs=1e-30)
    assert found[5] == math.inf
    assert found[6].isnan()


@SOME
@given(
    vocab=st.sampled_from([1, 300, 4096, 4097, 9000]),
    dtype=st.sampled_from(DTYPES),
    temperatures=st.lists(st.floats(0.05, 3.0), min_size=1, max_size=3),
    forbidden=st.sampled_from([0.0, 0.5]),
    seed=SEEDS,
)
def test_log_probabilities_follow_from_peak_and_total(vocab, dtype, temperatures, forbidden, seed):
    torch.manual_seed(seed)
    logits = (torch.randn(len(temperatures), vocab) * 8).to(dtype)
    hidden = torch.rand(logits.shape) < forbidden
    hidden[:, -1] = False
    logits = logits.masked_fill(hidden, -math.inf)
    temperatures_R = torch.tensor(temperatures, dtype=torch.float32)
    peak, total = softmax_stats(logits, temperatures_R)
    wanted = (logits.double() / temperatures_R.double()[:, None]).logsumexp(dim=1)
    torch.testing.assert_close(peak.double() + total.log(), wanted, rtol=1e-6, atol=1e-5)


@SOME
@given(
    vocab=st.sampled_from([1, 500, 1024, 3000]),
    dtype=st.sampled_from(DTYPES),
    temperature=st.floats(0.05, 3.0),
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
)
def test_draws_are_the_samplers_own(vocab, dtype, temperature, seeds):
    torch.manual_seed(seeds[0] % 2**32)
    logits = (torch.randn(len(seeds), vocab) * 3).to(dtype)
    keys = [noise_key(seed=s, choice=i, position=7, label=Label.TARGET) for i, s in enumerate(seeds)]
    wanted = [
        int(np.argmax(row.double().numpy() / temperature + gumbels(key, np.arange(vocab))))
        for row, key in zip(logits, keys, strict=True)
    ]
    temperatures_R = torch.full((len(seeds),), temperature, dtype=torch.float64)
    keys_R = torch.from_numpy(np.array(keys, np.uint64).view(np.int64))
    assert gumbel_argmax(logits, temperatures_R, keys_R).tolist() == wanted


def test_a_row_gives_the_same_bits_alone_and_beside_others():
    torch.manual_seed(1)
    x, weight, both = torch.randn(5, 576), torch.randn(576), torch.randn(5, 3000)
    for row in (0, 3, 4):
        part = slice(row, row + 1)
        assert torch.equal(rms_norm(x, weight, 1e-5)[part], rms_norm(x[part], weight, 1e-5))
        assert torch.equal(silu_mul(both)[part], silu_mul(both[part]))


def test_wrong_arguments_are_refused_with_words():
    x = torch.zeros(2, 8)
    with pytest.raises(ValueError, match=r"weight has shape \(7,\), not \(8,\)"):
        rms_norm(x, torch.zeros(7), 1e-5)
    with pytest.raises(ValueError, match="wider than"):
        rms_norm(torch.zeros(1, 20000), torch.zeros(20000), 1e-5)
    with pytest.raises(ValueError, match="no two halves"):
        silu_mul(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="5 pairs do not fit heads of 8"):
        rotary(torch.zeros(2, 1, 8), torch.zeros(2, 5, 2))
    with pytest.raises(ValueError, match=r"temperatures is torch.float32"):
        gumbel_argmax(x, torch.ones(2), torch.zeros(2, dtype=torch.int64))
