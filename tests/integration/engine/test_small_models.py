"""Random small Llama checkpoints: the engine's greedy tokens are those of transformers, however they are batched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from bench import EngineBench
from checkpoints import make_llama
from oracles import Reference, TieRule

from octavo_worker.models.base import LoadedModel
from octavo_worker.models.registry import load_model

NEW = 64
ROPE = {"rope_theta": 10000.0}
SHAPES = {
    "grouped heads, tied": {"hidden_size": 96, "head_dim": 16},
    "untied, biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "heads that only the plain backend takes": {"num_key_value_heads": 1, "head_dim": 8},
    "scaled rope": {
        "head_dim": 16,
        "rope_parameters": {
            **ROPE,
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}


@dataclass
class World:
    loaded: LoadedModel
    rule: TieRule
    prompts: list[list[int]]

    def check(self, bench: EngineBench, names: dict[str, list[int]]) -> None:
        assert not bench.errors
        for name, prompt in names.items():
            self.rule.check_greedy(name, prompt, bench.tokens[name], NEW)


@pytest.fixture(scope="module", params=SHAPES, ids=list(SHAPES))
def world(request, tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("small")
    model = make_llama(folder, max_position_embeddings=256, **SHAPES[request.param])
    random = np.random.default_rng(7)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 48, 100, 130, 150]
    prompts = [random.integers(2, 330, length).tolist() for length in lengths]
    reference = Reference(model=lambda: model, cache_dir=folder / "answers", key=request.param)
    rule = TieRule(reference)
    yield World(load_model(folder), rule, prompts)
    print(f"\n{request.param}:", rule.summary())


def numbered(prompts, prefix="p"):
    return {f"{prefix}{index}": prompt for index, prompt in enumerate(prompts)}


def test_alone(world):
    bench = EngineBench(world.loaded)
    for name, prompt in numbered(world.prompts).items():
        bench.add(name, prompt, NEW)
        bench.run()
    world.check(bench, numbered(world.prompts))
    for name, prompt in list(numbered(world.prompts).items())[::4]:
        world.rule.check_generated(name, prompt, bench.tokens[name])


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 512])
def test_32_at_once_whatever_the_chunk(world, chunk):
    bench = EngineBench(world.loaded, max_chunk_tokens=chunk)
    names = numbered((world.prompts * 3)[:32])
    for index, (name, prompt) in enumerate(names.items()):
        bench.add(name, prompt, NEW, salt=str(index))
    bench.run()
    assert not any(bench.num_cached.values())
    world.check(bench, names)


def test_with_prefix_hits(world):
    bench = EngineBench(world.loaded)
    first, second = numbered(world.prompts, "cold"), numbered(world.prompts, "warm")
    for names in (first, second):
        for name, prompt in names.items():
            bench.add(name, prompt, NEW)
        bench.run()
    for name, prompt in second.items():
        assert bench.num_cached[name] == (len(prompt) - 1) // 16 * 16
    world.check(bench, first | second)


def test_after_preemption(world):
    # Sixteen blocks are one sequence of full length: two of the longer ones never fit beside each other to their end.
    bench = EngineBench(world.loaded, num_blocks=16)
    names = numbered(world.prompts)
    for name, prompt in names.items():
        bench.add(name, prompt, NEW)
    bench.run()
    assert bench.num_preemptions > 0
    world.check(bench, names)


def test_next_to_others_that_come_and_go(world):
    bench = EngineBench(world.loaded, num_blocks=60, max_batch_tokens=96, max_sequences=16)
    random = np.random.default_rng(3)
    names = numbered(world.prompts)
    waiting, guests, number = list(names.items()), [], 0
    while waiting or bench.engine.has_work:
        if waiting and random.random() < 0.4:
            name, prompt = waiting.pop()
            bench.add(name, prompt, NEW)
        if random.random() < 0.3 and (waiting or len(guests) < 5):
            number += 1
            guests.append(f"guest{number}")
            prompt = random.integers(2, 330, random.integers(1, 90)).tolist()
            bench.add(guests[-1], prompt, 40, temperature=1.0, seed=number)
        if guests and random.random() < 0.3:
            bench.take(bench.engine.abort(guests.pop(random.integers(len(guests)))))
        bench.step()
        if not waiting and all(len(bench.tokens[name]) == NEW for name in names):
            for guest in guests:
                bench.take(bench.engine.abort(guest))
            guests = []
    assert bench.engine.stats().num_used_blocks == 0
    world.check(bench, names)


def test_a_request_whose_token_does_not_exist_fails_alone(world):
    bench = EngineBench(world.loaded)
    names = numbered(world.prompts[:6])
    for name, prompt in names.items():
        bench.add(name, prompt, NEW)
    bench.add("bad", [5, 10**6, 7], NEW)
    bench.run()
    assert list(bench.errors) == ["bad"]
    bench.errors.clear()
    world.check(bench, names)
