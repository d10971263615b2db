"""Drafts change nothing: what is accepted, plus one token, is what token-by-token drawing gives."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_worker.engine.plan import NO_DRAFT, Draft
from octavo_worker.engine.types import SamplingParams
from octavo_worker.verify.base import WantedRow
from octavo_worker.verify.context import TokenContext
from octavo_worker.verify.coupled import Coupled

VOCAB = 6


def logits_after(tokens):
    """A toy model: logits are a function of all tokens so far."""
    generator = torch.Generator().manual_seed(hash(tuple(tokens)) % 2**31)
    return torch.randn(VOCAB, generator=generator) * 2


def params(temperature):
    return SamplingParams(
        temperature=temperature,
        top_k=4,
        top_p=0.95,
        seed=9,
        max_tokens=99,
        repetition_penalty=1.1,
        frequency_penalty=0.5,
        bad_words=((1, 2), (4, 4)),
        min_tokens=3,
        stop_token_ids=frozenset({0}),
    )


def row(prefix, draft, temperature):
    context = TokenContext(params(temperature), num_prompt_tokens=1)
    context.know(0, prefix)
    return WantedRow(choices=(0,), position=len(prefix), params=params(temperature), draft=draft, context=context)


def one_by_one(prefix, count, temperature):
    tokens = list(prefix)
    for _ in range(count):
        verdict = Coupled().verify([row(tokens, NO_DRAFT, temperature)], logits_after(tokens)[None])[0]
        tokens += verdict.tokens
    return tokens[len(prefix) :]


def path_to(draft, node):
    path = []
    while node >= 0:
        path.insert(0, draft.tokens[node])
        node = draft.parents[node]
    return path


def verify(prefix, draft, temperature):
    rows = [logits_after([*prefix, *path_to(draft, node)]) for node in range(-1, len(draft))]
    return Coupled().verify([row(prefix, draft, temperature)], torch.stack(rows))[0]


@settings(max_examples=100, deadline=None)
@given(
    prefix=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
    nodes=st.lists(st.tuples(st.integers(0, VOCAB - 1), st.integers(0, 10**6)), max_size=12),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
)
def test_any_tree_gives_the_tokens_of_drawing_one_by_one(prefix, nodes, temperature):
    draft = Draft(
        tokens=tuple(token for token, _ in nodes),
        parents=tuple(choice % (index + 1) - 1 for index, (_, choice) in enumerate(nodes)),
    )
    verdict = verify(prefix, draft, temperature)
    assert list(verdict.tokens) == one_by_one(prefix, len(verdict.tokens), temperature)
    assert len(verdict.accepted) == len(verdict.tokens) - 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_right_chain_is_accepted_whole_and_brings_one_token_more(temperature):
    prefix = [2, 5]
    draft = Draft.chain(tuple(one_by_one(prefix, 4, temperature)))
    verdict = verify(prefix, draft, temperature)
    assert verdict.accepted == (0, 1, 2, 3)
    assert list(verdict.tokens) == one_by_one(prefix, 5, temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_several_choices_of_one_row_get_what_each_would_draw_alone(temperature):
    logits = torch.stack([logits_after([1]), logits_after([2])])
    shared = row([1], NO_DRAFT, temperature)
    rows = [replace(shared, choices=(0, 1, 2, 3, 4, 5)), row([2], NO_DRAFT, temperature)]
    verdicts = Coupled().verify(rows, logits.clone())
    alone = [Coupled().verify([replace(shared, choices=(i,))], logits[:1].clone())[0].tokens[0] for i in range(6)]
    assert [*verdicts[0].tokens, *verdicts[0].siblings] == alone
    assert (len(set(alone)) > 1) == (temperature > 0)
    assert verdicts[1] == Coupled().verify([row([2], NO_DRAFT, temperature)], logits[1:])[0]


@pytest.mark.parametrize("num_candidates", [1, 4, VOCAB, 50])
def test_candidates_are_the_best_of_the_log_softmax_and_equals_rank_by_id(num_candidates):
    logits = torch.stack([logits_after([1]), torch.tensor([1.0, 3.0, 1.0, 3.0, 1.0, 0.0])])
    rows = [WantedRow(choices=(), position=1, params=params(0.0), num_candidates=num_candidates)] * 2
    for verdict, logits_V in zip(Coupled().verify(rows, logits), logits.double(), strict=True):
        expected = sorted(enumerate(logits_V.log_softmax(-1).tolist()), key=lambda pair: (-pair[1], pair[0]))
        assert [token for token, _ in verdict.candidates] == [token for token, _ in expected[:num_candidates]]
        assert [value for _, value in verdict.candidates] == pytest.approx([v for _, v in expected[:num_candidates]])
        assert verdict.tokens == ()


def test_a_row_with_nan_fails_alone():
    logits = torch.stack([logits_after([1]), torch.full((VOCAB,), math.nan), logits_after([3])])
    verdicts = Coupled().verify([row([1], NO_DRAFT, 0.7)] * 3, logits)
    assert [verdict.error is None for verdict in verdicts] == [True, False, True]
    assert verdicts[1].tokens == ()


def test_a_beam_of_which_no_token_is_allowed_is_a_dead_end_and_no_error():
    sampling = SamplingParams(max_tokens=9, allowed_token_ids=frozenset({4}), bad_words=((4,),), num_logprobs=1)
    beam = WantedRow(
        choices=(), position=3, params=sampling, num_candidates=4, context=TokenContext(sampling, num_prompt_tokens=3)
    )
    plain = WantedRow(choices=(0,), position=3, params=SamplingParams(max_tokens=9))
    logits = torch.stack([logits_after([1]), logits_after([2])])
    dead, alive = Coupled().verify([beam, plain], logits.clone())
    assert (dead.error, dead.candidates) == (None, ())
    assert (alive.tokens, alive.candidates) == ((int(logits[1].argmax()),), None)
    broken = Coupled().verify([beam], torch.full((1, VOCAB), math.nan))[0]
    assert "not finite" in str(broken.error)
