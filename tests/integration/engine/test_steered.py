"""Penalties, bans and grammars through the whole engine: alone, at once, in chunks and after preemption the same."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
import torch
from bench import EngineBench
from checkpoints import make_llama

from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.models.registry import load_model

NEW, EOS = 40, 0
WAYS = {
    "alone": {},
    "at once": {},
    "in chunks": {"max_chunk_tokens": 3},
    "preempted": {"num_blocks": 16},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steered")
    model = make_llama(folder, max_position_embeddings=256)
    random = np.random.default_rng(5)
    prompts = {f"p{length}": random.integers(2, 320, length).tolist() for length in (3, 17, 40, 64, 100, 130)}
    return model, load_model(folder), prompts


def answers(loaded, prompts, way, params_of):
    """Tokens of all prompts; ``params_of(bench, name)``."""
    bench = EngineBench(loaded, **WAYS[way])
    for name, prompt in prompts.items():
        bench.add(name, prompt, salt=name, **params_of(bench, name))
        if way == "alone":
            bench.run()
    bench.run()
    assert not bench.errors
    assert (bench.num_preemptions > 0) == (way == "preempted")
    return bench.tokens


@pytest.mark.parametrize("way", WAYS)
def test_penalised_greedy_answers_are_those_of_generate(world, way):
    model, loaded, prompts = world
    banned = [[7], [11, 12], [200, 5, 9]]
    found = answers(
        loaded,
        prompts,
        way,
        lambda _bench, _name: {
            "max_tokens": NEW,
            "repetition_penalty": 1.4,
            "bad_words": tuple(map(tuple, banned)),
            "min_tokens": 25,
            "stop_token_ids": frozenset({EOS}),
        },
    )
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW,
            min_new_tokens=25,
            repetition_penalty=1.4,
            bad_words_ids=banned,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
        assert found[name] == expected[0, len(prompt) :].tolist()
        assert 7 not in found[name]


class Told(EngineBench):
    """Keeps what is told of tokens, too."""

    def __init__(self, loaded, **settings):
        super().__init__(loaded, **settings)
        self.prompts, self.outputs = {}, {}

    def take(self, deltas):
        super().take(deltas)
        for delta in deltas:
            self.prompts.setdefault(delta.id.request, []).extend(delta.prompt_logprobs)
            self.outputs.setdefault(delta.id.request, []).extend(delta.logprobs)


@pytest.mark.parametrize("way", WAYS)
def test_logprobs_of_prompts_and_answers_are_those_of_the_model_in_every_way(world, way):
    model, loaded, prompts = world
    bench = Told(loaded, **WAYS[way])
    if way != "preempted":
        # Cached prefixes must not hide a prompt's log-probabilities.
        for name, prompt in prompts.items():
            bench.add(f"before {name}", prompt, 1)
        bench.run()
    for name, prompt in prompts.items():
        told = {"num_logprobs": 2, "num_prompt_logprobs": 2}
        bench.add(name, prompt, NEW, temperature=1.0, top_p=0.8, seed=3, **told)
        if way == "alone":
            bench.run()
    bench.run()
    assert not bench.errors
    assert (bench.num_preemptions > 0) == (way == "preempted")
    for name, prompt in prompts.items():
        tokens = [*prompt, *bench.tokens[name]]
        with torch.inference_mode():
            expected = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        found = [*bench.prompts[name], *bench.outputs[name]]
        assert len(found) == len(tokens) - 1
        for told, token, row in zip(found, tokens[1:], expected, strict=False):
            assert told.logprob == pytest.approx(float(row[token]), abs=1e-3)
            assert [value for _, value in told.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)


SCHEMA = {
    "type": "object",
    "properties": {
        "leaf": {"type": "string", "maxLength": 6},
        "folds": {"type": "integer", "minimum": 1, "maximum": 64},
    },
    "required": ["leaf", "folds"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def documents(world):
    """Each way's answers under a schema."""
    _, loaded, prompts = world

    def params_of(bench, name):
        key = bench.built.grammars.compile("json_schema", json.dumps(SCHEMA))
        stops = frozenset({EOS})
        return {"max_tokens": 150, "grammar": key, "stop_token_ids": stops, "temperature": 0.9, "seed": len(name)}

    return {way: answers(loaded, prompts, way, params_of) for way in WAYS}


def test_documents_are_valid_and_the_same_in_every_way(world, documents):
    tokenizer = Tokenizer(world[1].bundle)
    num_finished = 0
    for name, tokens in documents["alone"].items():
        if tokens[-1] == EOS:
            jsonschema.validate(json.loads(tokenizer.decode(tokens[:-1])), SCHEMA)
            num_finished += 1
        for way in WAYS:
            assert documents[way][name] == tokens, f"{name} {way}"
    assert num_finished >= 4


def test_requests_that_can_go_nowhere_fail_alone_and_say_why(world, documents):
    _, loaded, prompts = world
    bench = EngineBench(loaded)
    key = bench.built.grammars.compile("json_schema", json.dumps(SCHEMA))
    steered = {"grammar": key, "stop_token_ids": frozenset({EOS}), "temperature": 0.9}
    bench.add("banned", [5, 6], NEW, allowed_token_ids=frozenset({9}), bad_words=((9, 9),))
    bench.add("unknown grammar", [5, 6, 7], NEW, grammar="0123")
    bench.add("no end", [5, 6], NEW, grammar=bench.built.grammars.compile("choice", '["a"]'))
    for name, prompt in prompts.items():
        bench.add(name, prompt, 150, seed=len(name), salt=name, **steered)
    bench.run()
    assert {name: bench.tokens[name] for name in prompts} == documents["alone"]
    assert bench.tokens["banned"] == [9]
    assert bench.errors["banned"] == "no token may follow: allowed_token_ids, bad_words leaves none"
    assert "not known here" in bench.errors["unknown grammar"]
    assert bench.errors["no end"] == "no token may follow: the grammar leaves none"
    assert len(bench.errors) == 3
