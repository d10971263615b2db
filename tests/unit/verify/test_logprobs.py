"""Log-probabilities, ranks and alternatives against log_softmax in float64 and Hugging Face's filters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from octavo_worker.engine.types import SamplingParams
from octavo_worker.verify.base import ScoredToken, WantedRow
from octavo_worker.verify.context import TokenContext
from octavo_worker.verify.coupled import Coupled


def random_logits(seed, size, *, steps=0, spread=3.0):
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * spread
    return (logits * steps).round() / steps if steps else logits


def check(told, logprobs_V, token, num_top):
    """``told`` says of the token and of the best ones what these float64 log-probabilities say."""
    values = logprobs_V.tolist()
    order = sorted((i for i in range(len(values)) if values[i] > -math.inf), key=lambda i: (-values[i], i))
    assert told.logprob == pytest.approx(values[token], abs=1e-5)
    assert told.rank == order.index(token) + 1
    assert [i for i, _ in told.top] == order[:num_top]
    assert [value for _, value in told.top] == pytest.approx([values[i] for i in order[:num_top]], abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([2, 63, 64, 65, 1000, 1025, 49_152]),
    steps=st.sampled_from([0, 0, 3]),
    num_top=st.sampled_from([0, 1, 5, 20, 100]),
)
def test_known_tokens_are_scored_like_log_softmax_and_equals_rank_by_id(seed, size, steps, num_top):
    logits = random_logits(seed, size, steps=steps)
    tokens = [0, size - 1, seed % size]
    told = Coupled().score([ScoredToken(token=t, num_top=num_top) for t in tokens], logits.expand(3, size))
    for token, answer in zip(tokens, told, strict=True):
        check(answer, logits[0].double().log_softmax(-1), token, num_top)


def test_a_row_that_is_not_finite_has_no_logprobs_and_the_others_do():
    logits = torch.randn(3, 70)
    logits[1, 5] = math.nan
    told = Coupled().score([ScoredToken(token=2, num_top=1)] * 3, logits)
    assert [answer is not None for answer in told] == [True, False, True]


def verify(logits, params, *, choices=(0,), context=None):
    row = WantedRow(choices=choices, position=4, params=params, context=context)
    return Coupled().verify([row], logits.clone())[0]


def processed_logprobs(logits, params, tokens):
    """What Hugging Face's chain makes of the logits."""
    chain = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature:
        chain.append(TemperatureLogitsWarper(params.temperature))
        if params.top_k:
            chain.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1.0:
            chain.append(TopPLogitsWarper(params.top_p))
        if params.min_p:
            chain.append(MinPLogitsWarper(params.min_p))
    return chain(torch.tensor([tokens]), logits.double())[0].log_softmax(-1)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([100, 1000, 49_152]),
    spread=st.sampled_from([0.3, 3.0]),
    temperature=st.sampled_from([0.0, 0.6, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 7, 80]),
    top_p=st.sampled_from([1.0, 0.97, 0.5]),
    min_p=st.sampled_from([0.0, 0.03, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
)
def test_processed_logprobs_are_those_after_hugging_faces_processors_and_filters(seed, size, spread, **values):
    logits = random_logits(seed, size, spread=spread)
    params = SamplingParams(max_tokens=9, seed=seed, num_logprobs=10, processed_logprobs=True, **values)
    context = TokenContext(params, num_prompt_tokens=3)
    context.know(0, [5, 6, 7, 8])
    verdict = verify(logits, params, context=context)
    check(verdict.logprobs[0], processed_logprobs(logits, params, [5, 6, 7, 8]), verdict.tokens[0], 10)


def test_raw_logprobs_are_the_models_own_whatever_was_penalised_or_forbidden():
    logits = random_logits(1, 500)
    best = int(logits.argmax())
    params = SamplingParams(max_tokens=9, temperature=0.7, top_k=3, num_logprobs=4, logit_bias=((best, -100.0),))
    verdict = verify(logits, params, context=TokenContext(params, num_prompt_tokens=1))
    assert verdict.tokens[0] != best
    check(verdict.logprobs[0], logits[0].double().log_softmax(-1), verdict.tokens[0], 4)
    assert verdict.logprobs[0].top[0][0] == best


def test_each_sibling_is_told_its_own():
    logits = random_logits(2, 300, spread=1.0)
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=4, num_logprobs=2)
    verdict = verify(logits, params, choices=tuple(range(8)))
    expected = logits[0].double().log_softmax(-1)
    check(verdict.logprobs[0], expected, verdict.tokens[0], 2)
    assert len(verdict.sibling_logprobs) == len(verdict.siblings) == 7
    for token, told in zip(verdict.siblings, verdict.sibling_logprobs, strict=True):
        check(told, expected, token, 2)


def test_candidates_keep_the_models_sum_when_some_are_forbidden():
    logits = random_logits(3, 200)
    order = logits[0].argsort(descending=True).tolist()
    params = SamplingParams(max_tokens=9, bad_words=((order[0],), (order[2],)))
    row = WantedRow(
        choices=(),
        position=4,
        params=params,
        num_candidates=4,
        context=TokenContext(params, num_prompt_tokens=4),
    )
    found = Coupled().verify([row], logits.clone())[0].candidates
    assert [token for token, _ in found] == [order[1], order[3], order[4], order[5]]
    expected = logits[0].double().log_softmax(-1)
    assert [value for _, value in found] == pytest.approx([float(expected[t]) for t, _ in found], abs=1e-5)
    allowed = replace(params, bad_words=(), allowed_token_ids=frozenset(order[:2]))
    few = replace(row, params=allowed, context=TokenContext(allowed, num_prompt_tokens=4))
    assert [token for token, _ in Coupled().verify([few], logits.clone())[0].candidates] == order[:2]


def test_nobody_asked_nobody_is_told():
    verdict = verify(random_logits(0, 50), SamplingParams(max_tokens=9))
    assert verdict.logprobs == ()
    assert np.isfinite(verdict.tokens[0])
