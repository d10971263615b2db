"""Dynamic rope beyond the original length: an answer is what a fresh transformers model gives, whatever ran before."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from bench import EngineBench
from checkpoints import make_llama
from oracles import TIE

from octavo_worker.models.registry import load_model

ORIGINAL, FACTOR, NEW = 32, 4.0, 24


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dynamic")
    rope = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": FACTOR}
    theirs = make_llama(folder, max_position_embeddings=ORIGINAL, rope_parameters=rope, head_dim=16)
    random = np.random.default_rng(5)
    longest = random.integers(2, 330, 90).tolist()
    # All begin alike: what one sequence has cached must not be taken for another's where the angles differ.
    return load_model(folder), theirs, [longest[:length] for length in (8, 30, 32, 33, 48, 64, 65, 90)]


def check(theirs, prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Each token is the best one of a fresh module that is fed like a generation: the prompt, then token by token."""
    model, cache = copy.deepcopy(theirs), None
    assert len(answer) == NEW
    for position, token in enumerate(answer):
        fed = [*prompt] if position == 0 else [answer[position - 1]]
        with torch.inference_mode():
            out = model(torch.tensor([fed]), cache=cache, use_cache=True)
        cache, logits = out.cache, out.logits[0, -1]
        assert logits.max() - logits[token] < TIE, f"prompt of {len(prompt)}: token {position} is not the best"


def test_the_context_is_the_stretched_one(world):
    loaded, _, _ = world
    assert loaded.config.context_length == ORIGINAL * FACTOR
    assert loaded.config.stretches_beyond == ORIGINAL


@pytest.mark.parametrize("chunk", [None, 1, 17])
def test_prompts_of_all_lengths_at_once(world, chunk):
    loaded, theirs, prompts = world
    bench = EngineBench(loaded, max_chunk_tokens=chunk)
    for index, prompt in enumerate(prompts):
        bench.add(f"p{index}", prompt, NEW)
    bench.run()
    for index, prompt in enumerate(prompts):
        check(theirs, prompt, bench.tokens[f"p{index}"])


def test_cached_blocks_are_shared_only_where_the_angles_are_equal(world):
    loaded, theirs, prompts = world
    bench = EngineBench(loaded)
    for name in ("cold", "warm"):
        for index, prompt in enumerate(prompts):
            bench.add(f"{name}{index}", prompt, NEW)
            bench.run()
            check(theirs, prompt, bench.tokens[f"{name}{index}"])
    # Up to the original length all share; beyond it only prompts of one length.
    assert [bench.num_cached[f"cold{index}"] for index in range(len(prompts))] == [0, 0, 16, 0, 0, 0, 0, 0]
    assert [bench.num_cached[f"warm{index}"] for index in range(len(prompts))] == [0, 16, 16, 32, 32, 48, 64, 80]


def test_preempted_sequences_are_computed_again_with_the_same_angles(world):
    loaded, theirs, prompts = world
    bench = EngineBench(loaded, num_blocks=9)
    for index, prompt in enumerate(prompts):
        bench.add(f"p{index}", prompt, NEW)
    bench.run()
    assert bench.num_preemptions > 0
    for index, prompt in enumerate(prompts):
        check(theirs, prompt, bench.tokens[f"p{index}"])
