"""Norms, gates and packed linear maps against float64, for every number of rows that a step may have."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from octavo_worker.kernels.rows import rms_norm, silu_gate
from octavo_worker.models.layers import Linear


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("num_rows", "width"), [(1, 576), (7, 48), (64, 576), (513, 100)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_norms_match_float64(num_threads, num_rows, width, size):
    torch.manual_seed(num_rows)
    x, weight = torch.randn(num_rows, width) * size, torch.randn(width)
    expected = F.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("num_rows", "width"), [(1, 1536), (7, 40), (64, 1536), (513, 100)])
def test_gates_match_float64(num_threads, num_rows, width):
    torch.manual_seed(num_rows)
    both = torch.randn(num_rows, 2 * width) * 8
    gate, up = both.double().chunk(2, dim=-1)
    torch.testing.assert_close(silu_gate(both).double(), F.silu(gate) * up, rtol=2e-6, atol=1e-6)


def test_gates_at_the_ends_of_the_range():
    ends = torch.tensor([[1e30, -1e6, 88.0, -88.0, 0.0, math.inf, math.nan, *[1.0] * 7]])
    found = silu_gate(ends)[0]
    assert found[0] == torch.tensor(1e30)
    assert found[1:5].tolist() == pytest.approx([0.0, 88.0, 0.0, 0.0], abs=1e-30)
    assert found[5] == math.inf
    assert found[6].isnan()


def test_a_row_gives_the_same_bits_alone_and_beside_others(num_threads):
    x, weight = torch.randn(200, 576), torch.randn(576)
    both = torch.randn(200, 3072)
    for row in (0, 63, 199):
        part = slice(row, row + 1)
        assert torch.equal(rms_norm(x, weight, 1e-5)[part], rms_norm(x[part], weight, 1e-5))
        assert torch.equal(silu_gate(both)[part], silu_gate(both[part]))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (30, 48), (1, 7)])
def test_linear_maps_match_float64_for_any_number_of_rows(num_threads, outputs, inputs, bias):
    torch.manual_seed(outputs)
    weight, biases = torch.randn(outputs, inputs), torch.randn(outputs) if bias else None
    linear = Linear(weight.clone(), biases)
    for num_rows in (1, 2, 3, 5, 8, 16, 17, 31, 64, 100, 511, 512, 513, 1500):
        x = torch.randn(num_rows, inputs)
        expected = F.linear(x.double(), weight.double(), None if biases is None else biases.double())
        with torch.inference_mode():
            torch.testing.assert_close(linear(x).double(), expected, rtol=1e-5, atol=3e-4)
