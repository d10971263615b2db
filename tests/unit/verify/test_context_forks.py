"""A context that was copied at a fork equals one that was told every token, and costs no look at any of them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from checkpoints import train_bpe

from octavo_common.text.bundle import TokenizerBundle
from octavo_worker.engine.types import SamplingParams
from octavo_worker.verify.context import TokenContext
from octavo_worker.verify.grammars import GrammarMatcher, GrammarStore

VOCAB, EOS, NUM_PROMPT = 330, 0, 5


@pytest.fixture(scope="module")
def store():
    bundle = TokenizerBundle(tokenizer_json=train_bpe().to_str(), eos_token="<|end|>", eos_ids=(EOS,))
    return GrammarStore(bundle, vocab_size=VOCAB, eos_ids=bundle.eos_ids)


@pytest.fixture(scope="module")
def key(store):
    return store.compile("regex", "[a-z ]{400}")


def params_of(key):
    return SamplingParams(
        max_tokens=999,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        bad_words=((3, 4), (7,)),
        logit_bias=((9, 2.0),),
        min_tokens=4,
        stop_token_ids=frozenset({EOS}),
        grammar=key,
    )


def told(store, key, tokens):
    context = TokenContext(params_of(key), num_prompt_tokens=NUM_PROMPT, matcher=store.get(key))
    context.know(0, tokens)
    return context


def changed(context, num_tokens):
    logits = np.linspace(-3, 3, VOCAB, dtype=np.float32)
    assert context.process(logits, num_tokens) is None
    return logits


def sentence(context, rng, num_tokens):
    """Tokens that the grammar allows, one after another, told to the context."""
    tokens = []
    for position in range(NUM_PROMPT, NUM_PROMPT + num_tokens):
        allowed = np.flatnonzero(np.isfinite(changed(context, position)))
        tokens.append(int(rng.choice(allowed)))
        context.know(position, tokens[-1:])
    return tokens


@pytest.mark.parametrize("seed", range(3))
def test_twins_go_their_own_ways_from_the_fork_on_as_if_each_had_been_told_everything(store, key, seed):
    rng = random.Random(seed)
    prompt = [rng.randrange(1, VOCAB) for _ in range(NUM_PROMPT)]
    origin = told(store, key, prompt)
    tokens = prompt + sentence(origin, rng, 12)
    twins = [origin.copy(), origin.copy()]
    # The first of them goes on where the origin stood some tokens before, as one that was planned late.
    starts = [len(tokens) - 3, len(tokens)]
    heads = [tokens[:start] for start in starts]
    for twin, head in zip(twins, heads, strict=True):
        twin.know(len(head), ())
        for _ in range(6):
            fresh = told(store, key, head)
            logits = changed(twin, len(head))
            assert np.array_equal(logits, changed(fresh, len(head)))
            head.append(int(rng.choice(np.flatnonzero(np.isfinite(logits)))))
            twin.know(len(head) - 1, head[-1:])
    assert np.array_equal(changed(origin, len(tokens)), changed(told(store, key, tokens), len(tokens)))


@pytest.mark.parametrize("num_tokens", [8, 64])
def test_a_fork_tells_the_grammar_none_of_the_tokens_before_it(store, key, monkeypatch, num_tokens):
    accepted = []
    accept = GrammarMatcher.accept
    monkeypatch.setattr(GrammarMatcher, "accept", lambda self, token: accepted.append(token) or accept(self, token))
    origin = told(store, key, range(1, 1 + NUM_PROMPT))
    tokens = sentence(origin, random.Random(1), num_tokens)
    del accepted[:]
    twin = origin.copy()
    twin.know(NUM_PROMPT + num_tokens - 1, tokens[-1:])
    assert accepted == tokens[-1:]
