"""A random checkpoint of each family: the engine's greedy tokens are those of transformers, windows or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from bench import EngineBench
from checkpoints import make_model, write_gguf
from oracles import Reference, TieRule

from octavo_worker.models.base import LoadedModel
from octavo_worker.models.registry import load_model

NEW = 32
UPPER = {"use_sliding_window": True, "max_window_layers": 1}
LENGTHS = (1, 15, 16, 17, 33, 48, 100, 150)
# Windows within a block, of a block and a bit, and of some blocks: all shorter than the longer prompts.
SHAPES = {
    "mistral, window 7": ("mistral", {"sliding_window": 7, "head_dim": 16}),
    "mistral, window 40": ("mistral", {"sliding_window": 40, "head_dim": 32, "tie_word_embeddings": False}),
    "qwen2, window 20 in the upper layer": ("qwen2", {"hidden_size": 96, "sliding_window": 20, **UPPER}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3, window 33, for the plain backend": ("qwen3", {"head_dim": 8, "sliding_window": 33, **UPPER}),
    "qwen3 as gguf": ("qwen3", {"head_dim": 16, "tie_word_embeddings": False}),
}


@dataclass
class World:
    loaded: LoadedModel
    rule: TieRule
    prompts: dict[str, list[int]]

    def run(self, bench: EngineBench, prefix: str = "", **params) -> None:
        """All prompts at once to their end, and each answer compared."""
        for name, prompt in self.prompts.items():
            bench.add(prefix + name, prompt, NEW, **params)
        bench.run()
        assert not bench.errors
        for name, prompt in self.prompts.items():
            self.rule.check_greedy(prefix + name, prompt, bench.tokens[prefix + name], NEW)


@pytest.fixture(scope="module", params=SHAPES, ids=list(SHAPES))
def world(request, tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("family")
    family, overrides = SHAPES[request.param]
    theirs = make_model(folder, family, max_position_embeddings=256, **overrides)
    source = write_gguf(folder / "model.gguf", theirs) if request.param.endswith("gguf") else folder
    random = np.random.default_rng(11)
    longest = random.integers(2, 330, 150).tolist()
    # All begin alike, so that the second of two runs finds blocks of other prompts too.
    prompts = {f"p{length}": longest[:length] for length in LENGTHS}
    rule = TieRule(Reference(model=lambda: theirs, cache_dir=folder / "answers", key=request.param))
    yield World(load_model(source), rule, prompts)
    print(f"\n{request.param}:", rule.summary())


def test_the_fast_backend_is_taken_where_the_heads_fit(world):
    expected = "cpu" if world.loaded.config.head_dim % 16 == 0 else "reference"
    assert EngineBench(world.loaded).built.attention_backend == expected


def test_alone(world):
    bench = EngineBench(world.loaded)
    for name, prompt in world.prompts.items():
        bench.add(name, prompt, NEW, salt=name)
        bench.run()
        world.rule.check_greedy(name, prompt, bench.tokens[name], NEW)
    for name in ("p1", "p100"):
        world.rule.check_generated(name, world.prompts[name], bench.tokens[name])


@pytest.mark.parametrize("chunk", [1, 17])
def test_all_at_once_whatever_the_chunk(world, chunk):
    world.run(EngineBench(world.loaded, max_chunk_tokens=chunk))


def test_with_prefix_hits(world):
    bench = EngineBench(world.loaded)
    world.run(bench, "cold")
    world.run(bench, "warm")
    for name, prompt in world.prompts.items():
        assert bench.num_cached[f"warm{name}"] == (len(prompt) - 1) // 16 * 16


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_after_preemption(world, preemption):
    # Less than two sequences of full length: the longer ones do not fit beside each other to their end.
    bench = EngineBench(world.loaded, num_blocks=16, preemption=preemption)
    world.run(bench)
    assert bench.num_preemptions > 0
