"""Tokens after preemption, both ways and in both styles, are those of transformers; what is in host memory is exact."""

from __future__ import annotations

import numpy as np
import pytest
from bench import EngineBench
from checkpoints import make_llama
from oracles import Reference, TieRule

from octavo_worker.models.registry import load_model

NEW = 48


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preemption")
    model = make_llama(folder, max_position_embeddings=256, hidden_size=96, head_dim=16)
    random = np.random.default_rng(17)
    prompts = {f"p{n}": random.integers(2, 330, n).tolist() for n in (1, 15, 16, 17, 40, 64, 90, 130)}
    rule = TieRule(Reference(model=lambda: model, cache_dir=folder / "answers", key="preemption"))
    return load_model(folder), rule, prompts


@pytest.mark.parametrize("style", ["v1", "v0"])
@pytest.mark.parametrize("swap_bytes", [None, 1 << 16, 1 << 24], ids=["recompute", "little room", "swap"])
def test_preempted_sequences_go_on_as_if_nothing_had_been(world, style, swap_bytes):
    loaded, rule, prompts = world
    settings = {"preemption": "recompute"} if swap_bytes is None else {"preemption": "swap", "swap_bytes": swap_bytes}
    bench = EngineBench(loaded, num_blocks=20, engine_style=style, max_sequences=8, **settings)
    for name, prompt in prompts.items():
        bench.add(name, prompt, NEW)
    bench.run()
    assert not bench.errors
    assert bench.num_preemptions > 0
    for name, prompt in prompts.items():
        rule.check_greedy(name, prompt, bench.tokens[name], NEW)


def test_a_swapped_sequence_has_the_very_bits_that_it_had(world):
    """At this temperature almost every token is likely, so a draw from other keys and values would show at once."""
    loaded, _, prompts = world
    prompts = {name: prompt for name, prompt in prompts.items() if len(prompt) > 30}

    def tokens(**settings):
        bench = EngineBench(loaded, max_sequences=4, **settings)
        for index, (name, prompt) in enumerate(prompts.items()):
            bench.add(name, prompt, 60, temperature=1.5, seed=index, salt=name)
        bench.run()
        return bench.tokens, bench.num_preemptions

    plain, none = tokens(num_blocks=200)
    swapped, some = tokens(num_blocks=24, preemption="swap", swap_bytes=1 << 24)
    assert none == 0 and some > 0
    assert swapped == plain
