"""Penalties, masks and biases against Hugging Face's processors and plain loops, however tokens became known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from octavo_worker.engine.types import SamplingParams
from octavo_worker.verify.context import TokenContext, needs_context

VOCAB = 40
PROMPT, OUTPUT = [3, 7, 7, 1, 30], [7, 2, 2, 9, 2, 11]


def random_logits(seed=0):
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)).numpy() * 3


def context_of(prompt, output, **values):
    context = TokenContext(SamplingParams(max_tokens=99, **values), num_prompt_tokens=len(prompt))
    context.know(0, [*prompt, *output])
    return context


def processed(logits, prompt, output, **values):
    logits = logits.copy()
    assert context_of(prompt, output, **values).process(logits, len(prompt) + len(output)) is None
    return logits


def by_hugging_face(processor, logits, tokens):
    return processor(torch.tensor([tokens]), torch.tensor(logits[None]))[0].numpy()


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_hugging_faces_over_prompt_and_output(penalty):
    logits = random_logits()
    expected = by_hugging_face(RepetitionPenaltyLogitsProcessor(penalty), logits, [*PROMPT, *OUTPUT])
    np.testing.assert_array_equal(processed(logits, PROMPT, OUTPUT, repetition_penalty=penalty), expected)


@pytest.mark.parametrize("words", [[[5]], [[2, 6], [9, 2, 8]], [[11], [2, 11, 4], [11, 12], [9, 11, 13]]])
def test_bad_words_are_hugging_faces_over_the_output(words):
    for length in range(len(OUTPUT) + 1):
        logits, output = random_logits(length), OUTPUT[:length]
        # Hugging Face looks at the prompt too; a token that is in no word stands for it.
        expected = by_hugging_face(NoBadWordsLogitsProcessor(words), logits, [39, *output])
        np.testing.assert_array_equal(
            processed(logits, PROMPT, output, bad_words=tuple(map(tuple, words))), expected.astype(np.float32)
        )


def test_a_bad_word_that_began_in_the_prompt_is_not_held_against_the_output():
    logits = random_logits()
    assert np.isfinite(processed(logits, [1, 2], [], bad_words=((2, 3),))[3])
    assert not np.isfinite(processed(logits, [1], [2], bad_words=((2, 3),))[3])


@pytest.mark.parametrize("length", [0, 3, 4, 6])
def test_min_tokens_is_hugging_faces_minimum_of_new_tokens(length):
    logits = random_logits(length)
    processor = MinLengthLogitsProcessor(4 + len(PROMPT), [0, 8])
    expected = by_hugging_face(processor, logits, [*PROMPT, *OUTPUT[:length]])
    got = processed(logits, PROMPT, OUTPUT[:length], min_tokens=4, stop_token_ids=frozenset({0, 8}))
    np.testing.assert_array_equal(got, expected)


def test_logit_bias_is_hugging_faces_bias_of_single_tokens():
    logits, bias = random_logits(), ((2, -100.0), (5, 3.5), (39, 0.25))
    processor = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias])
    expected = by_hugging_face(processor, logits, [*PROMPT, *OUTPUT])
    np.testing.assert_allclose(processed(logits, PROMPT, OUTPUT, logit_bias=bias), expected, rtol=1e-6)


def test_allowed_ids_suppress_all_others():
    logits = random_logits()
    processor = SuppressTokensLogitsProcessor([token for token in range(VOCAB) if token not in (4, 9)])
    expected = by_hugging_face(processor, logits, [*PROMPT, *OUTPUT])
    np.testing.assert_array_equal(processed(logits, PROMPT, OUTPUT, allowed_token_ids=frozenset({4, 9})), expected)


def by_hand(logits, prompt, output, params):
    """The order of vLLM's sampler, token by token."""
    found = [float(value) for value in logits]
    for token in range(VOCAB):
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            found[token] = -math.inf
        for word in params.bad_words:
            head = list(word[:-1])
            if token == word[-1] and (not head or output[-len(head) :] == head):
                found[token] = -math.inf
        if len(output) < params.min_tokens and token in params.stop_token_ids:
            found[token] = -math.inf
        found[token] += dict(params.logit_bias).get(token, 0.0)
        if token in prompt or token in output:
            factor = params.repetition_penalty
            found[token] = found[token] * factor if found[token] < 0 else found[token] / factor
        if output.count(token):
            found[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    return found


tokens = st.integers(0, VOCAB - 1)
some_params = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.frozensets(tokens, max_size=3),
    repetition_penalty=st.sampled_from([1.0, 1.2, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.6, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.5]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-5.0, 0.5, 4.0]), max_size=4).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    allowed_token_ids=st.sampled_from([frozenset(), frozenset(range(1, VOCAB, 2))]),
)


@settings(max_examples=200, deadline=None)
@given(
    params=some_params,
    prompt=st.lists(tokens, min_size=1, max_size=12),
    output=st.lists(tokens, max_size=12),
    chunks=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.booleans()), max_size=12),
    num_known=st.integers(0, 24),
)
def test_all_together_equal_plain_loops_in_whatever_pieces_tokens_came(params, prompt, output, chunks, num_known):
    everything, context = [*prompt, *output], TokenContext(params, num_prompt_tokens=len(prompt))
    # As after a prefix hit or preemption: some tokens come as history.
    position = min(num_known, len(everything))
    context.know(0, everything[:position])
    for size, num_guessed, repeats in [*chunks, (99, 0, True)]:
        piece = everything[position : position + size]
        for _ in range(1 + repeats):  # a failed step is repeated
            context.know(position, piece)
        # Guesses leave nothing behind.
        context.process(random_logits(1), position + len(piece) + num_guessed, [1, 2, 1, 3][:num_guessed])
        position += len(piece)
    logits = random_logits(len(everything))
    got = logits.copy()
    error = context.process(got, len(everything))
    expected = by_hand(logits, prompt, output, params)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert (error is not None) == (max(expected) == -math.inf)


@settings(max_examples=50, deadline=None)
@given(params=some_params, output=st.lists(tokens, max_size=8), path=st.lists(tokens, max_size=4))
def test_at_a_drafts_node_the_tokens_on_the_way_count_as_output(params, output, path):
    logits, direct = random_logits(3), random_logits(3)
    context_of(PROMPT, output, **_values(params)).process(logits, len(PROMPT + output + path), path)
    context_of(PROMPT, output + path, **_values(params)).process(direct, len(PROMPT + output + path))
    np.testing.assert_array_equal(logits, direct)


def _values(params):
    return {name: getattr(params, name) for name in params.__slots__ if name != "max_tokens"}


def test_rules_that_leave_nothing_are_named():
    logits = random_logits()
    values = {"allowed_token_ids": frozenset({4}), "bad_words": ((4,),)}
    error = context_of(PROMPT, [], **values).process(logits, len(PROMPT))
    assert error == "no token may follow: allowed_token_ids, bad_words leaves none"


def test_ids_beyond_the_vocabulary_are_nobodys():
    values = {
        "logit_bias": ((VOCAB + 5, 1.0),),
        "bad_words": ((VOCAB,),),
        "stop_token_ids": frozenset({VOCAB + 1}),
        "min_tokens": 3,
    }
    logits = random_logits()
    np.testing.assert_array_equal(processed(logits, PROMPT, OUTPUT[:2], **values), logits)


def test_plain_sampling_needs_no_context():
    plain = SamplingParams(max_tokens=5, temperature=0.7, top_k=4, top_p=0.5, min_p=0.1, num_logprobs=3)
    assert not needs_context(plain)
    for values in ({"min_tokens": 1}, {"logit_bias": ((1, 1.0),)}, {"presence_penalty": 0.1}, {"grammar": "x"}):
        assert needs_context(SamplingParams(max_tokens=5, **values))
