"""Metrics against what they say, computed in the plainest way in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_edge.graph.metrics import centred_sqnr_db, mean_kl, mean_nll, perplexity, sqnr_db, top1_agreement


def pair(seed, shape=(3, 50, 17), noise=0.1):
    generator = np.random.default_rng(seed)
    reference = (generator.standard_normal(shape) * 4 + generator.standard_normal((*shape[:-1], 1))).astype(np.float32)
    return reference, (reference + noise * generator.standard_normal(shape)).astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), rows=st.integers(1, 200))
def test_every_metric_equals_its_definition(seed, rows):
    reference, value = pair(seed, (rows, 9))
    p, q = torch.from_numpy(reference).double(), torch.from_numpy(value).double()
    error = p - q
    assert sqnr_db(reference, value) == pytest.approx(10 * math.log10(float((p**2).sum() / (error**2).sum())))
    centred, off = p - p.mean(1, keepdim=True), error - error.mean(1, keepdim=True)
    exact = 10 * math.log10(float((centred**2).sum() / (off**2).sum()))
    assert centred_sqnr_db(reference, value) == pytest.approx(exact)
    kl = F.kl_div(F.log_softmax(q, 1), F.log_softmax(p, 1), reduction="batchmean", log_target=True)
    assert mean_kl(reference, value) == pytest.approx(float(kl), rel=1e-9, abs=1e-12)
    targets = np.random.default_rng(seed).integers(0, 9, rows)
    loss = float(F.cross_entropy(p, torch.from_numpy(targets)))
    assert mean_nll(reference, targets) == pytest.approx(loss)
    assert perplexity(reference, targets) == pytest.approx(math.exp(loss))
    assert top1_agreement(reference, value) == float((p.argmax(1) == q.argmax(1)).double().mean())


def test_sums_do_not_lose_small_errors_beside_a_massive_activation():
    reference = np.ones((1000, 100), np.float32)
    reference[0, 0] = 24_000.0
    value = reference.copy()
    value[1:] += np.float32(2**-10)
    exact = 10 * math.log10((24_000.0**2 + 99_999) / (99_900 * 2.0**-20))
    assert sqnr_db(reference, value) == pytest.approx(exact, rel=1e-9)


def test_equal_arrays_are_without_noise_and_numbers_that_are_none_are_all_noise():
    reference, _ = pair(0)
    assert sqnr_db(reference, reference) == math.inf
    broken = reference.copy()
    broken[0, 0, 0] = np.nan
    assert sqnr_db(reference, broken) == -math.inf
    assert centred_sqnr_db(reference, broken) == -math.inf
    assert sqnr_db(np.zeros(4, np.float32), np.ones(4, np.float32)) == -math.inf


def test_a_model_that_is_sure_of_the_wrong_tokens_is_infinitely_perplexed():
    logits = np.array([[0.0, 1e4]], np.float32)
    assert perplexity(logits, np.array([0])) == math.inf


def test_an_offset_of_a_whole_row_is_no_error_of_its_probabilities():
    reference, _ = pair(1)
    shifted = reference.astype(np.float64) + 5.0
    assert sqnr_db(reference, shifted) < 10
    assert centred_sqnr_db(reference.astype(np.float64), shifted) > 250
    assert mean_kl(reference, shifted) == pytest.approx(0, abs=1e-12)


def test_other_shapes_cannot_be_compared():
    with pytest.raises(ValueError, match="shapes"):
        sqnr_db(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="targets"):
        mean_nll(np.zeros((2, 3), np.float32), np.zeros(3, np.int64))
