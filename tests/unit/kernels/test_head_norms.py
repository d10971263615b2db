"""Norms of the heads of q and k, inside the buffer that holds v too, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from octavo_worker.kernels.heads import norm_heads_
from octavo_worker.models import head_norms
from octavo_worker.models.head_norms import NoHeadNorm, RmsHeadNorm

EPS = 1e-6


def make(num_tokens, num_heads, num_kv_heads, head_dim):
    """(buffer of q, k and v as a fused projection leaves it, weights of q and k)."""
    torch.manual_seed(num_tokens)
    buffer = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, head_dim) * 3
    return buffer, torch.randn(head_dim), torch.randn(head_dim)


def expected(heads, weight):
    return F.rms_norm(heads.double(), heads.shape[-1:], weight.double(), EPS)


@pytest.mark.parametrize("shape", [(4, 2, 16), (16, 8, 128), (3, 1, 6), (1, 1, 80)])
@pytest.mark.parametrize("num_tokens", [1, 5, 200])
@pytest.mark.parametrize("compiled", [True, False])
def test_heads_of_q_and_k_are_normalised_in_place_and_those_of_v_are_left(monkeypatch, num_tokens, shape, compiled):
    num_heads, num_kv_heads, _ = shape
    buffer, q_weight, k_weight = make(num_tokens, *shape)
    before = buffer.clone()
    if not compiled:
        monkeypatch.setattr(head_norms, "norm_heads_", None)
    norm = RmsHeadNorm(q_weight, k_weight, num_heads=num_heads, num_kv_heads=num_kv_heads, eps=EPS)
    norm(buffer[:, : num_heads + num_kv_heads])
    q, k, v = buffer.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    old_q, old_k, old_v = before.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    torch.testing.assert_close(q.double(), expected(old_q, q_weight), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(k.double(), expected(old_k, k_weight), rtol=1e-5, atol=1e-6)
    assert torch.equal(v, old_v)


def test_a_token_gives_the_same_bits_alone_and_among_others():
    buffer, weight, _ = make(300, 6, 2, 64)
    weights = weight.expand(8, 64).contiguous()
    alone = buffer[77:78].clone()
    norm_heads_(buffer[:, :8], weights, EPS)
    norm_heads_(alone[:, :8], weights, EPS)
    assert torch.equal(buffer[77:78], alone)


def test_a_model_without_such_norms_leaves_the_heads_as_they_are():
    buffer, _, _ = make(3, 4, 2, 16)
    before = buffer.clone()
    NoHeadNorm()(buffer)
    assert torch.equal(buffer, before)
