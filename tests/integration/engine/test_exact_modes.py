"""Modes whose card says exact: logits are the same bits alone, in a batch, in any chunks, after preemption, on hits.

The tokens come with the log-probabilities of the 20 best, so that bits of logits are compared, not only choices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import make_llama

from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.base import LoadedModel
from octavo_worker.models.registry import load_model
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.build import EngineConfig, assemble
from octavo_worker.runtime.computing import BLOCK_SIZE, Resources, compute

NEW = 20


@dataclass
class Answers:
    tokens: dict[str, list[int]] = field(default_factory=dict)
    told: dict[str, list[object]] = field(default_factory=dict)
    num_preemptions: int = 0
    num_cached: int = 0


def serve(loaded: LoadedModel, prompts: dict[str, list[int]], *, rounds: int = 1, **settings) -> Answers:
    """Answer all prompts at once, the given number of times; the last answers are returned."""
    # A third of the requests is drawn by seed, the others are greedy.
    config = EngineConfig(model_path=Path(), poison_fresh_blocks=True, **{"kv_bytes": 64 << 20, **settings})
    built = assemble(config, loaded, attention_backends)
    assert built.card.exact
    answers = Answers()
    for _ in range(rounds):
        answers.tokens, answers.told = {name: [] for name in prompts}, {name: [] for name in prompts}
        for index, (name, prompt) in enumerate(prompts.items()):
            temperature = 0.9 if index % 3 == 1 else 0.0
            params = SamplingParams(max_tokens=NEW, temperature=temperature, top_p=0.95, seed=5, num_logprobs=20)
            built.engine.add(Request(id=name, prompt=tuple(prompt), params=params))
        while built.engine.has_work:
            for delta in built.engine.step():
                assert delta.error is None, delta.error
                answers.tokens[delta.id.request] += delta.tokens
                answers.told[delta.id.request] += delta.logprobs
                answers.num_preemptions += delta.events.count("preempted")
                answers.num_cached += delta.num_cached
        built.engine.check_integrity()
    return answers


def block_bytes(loaded: LoadedModel) -> int:
    """Of the pool that the model's computation makes."""
    resources = Resources(
        kv_bytes=64 << 20,
        num_threads=1,
        max_sequences=1,
        records_decode=False,
        attention_backend="auto",
        backends=attention_backends,
        poison=False,
    )
    return compute(loaded, resources).pool[0].nbytes


def same(ours: Answers, theirs: Answers) -> None:
    for name, tokens in ours.tokens.items():
        assert tokens == theirs.tokens[name], name
        assert ours.told[name] == theirs.told[name], name


@pytest.fixture(scope="module", params=["random, w8a8", "demo, w8a8", "demo, w4a8", "random, bfloat16", "demo, w4a16"])
def world(request, tmp_path_factory, demo_model_path):
    """A model and the answers that it gives to each prompt alone."""
    model, precision = request.param.split(", ")
    random = np.random.default_rng(11)
    if model == "demo":
        loaded, lengths, vocab = load_model(demo_model_path, precision=precision), [14, 15, 16, 31, 32, 48], 40_000
    else:
        folder = tmp_path_factory.mktemp("exact")
        shape = {"hidden_size": 96, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 256}
        make_llama(folder, **shape)
        loaded, lengths, vocab = load_model(folder, precision=precision), [1, 2, 15, 16, 17, 33, 48, 100, 130], 330
    prompts = {f"p{n}": random.integers(2, vocab, n).tolist() for n in lengths}
    answers = Answers()
    for name, prompt in prompts.items():
        index = list(prompts).index(name)
        # Its place among the prompts decides how it is drawn: keep it.
        alone = serve(loaded, {**{f"x{i}": [3] for i in range(index)}, name: prompt}, max_sequences=1)
        answers.tokens[name], answers.told[name] = alone.tokens[name], alone.told[name]
    return loaded, prompts, answers


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, None])
def test_logits_are_the_same_bits_in_every_chunk_size_beside_others(world, chunk) -> None:
    loaded, prompts, alone = world
    same(alone, serve(loaded, prompts, max_chunk_tokens=chunk))


def test_logits_are_the_same_bits_in_a_batch_of_32_and_on_prefix_hits(world) -> None:
    loaded, prompts, alone = world
    many = {**prompts, **{f"y{i}": [7 + i] * (3 + i) for i in range(32 - len(prompts))}}
    answers = serve(loaded, many, rounds=2)
    same(alone, answers)
    assert answers.num_cached > 0


@pytest.mark.parametrize("style", ["v1", "v0"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_logits_are_the_same_bits_after_preemption_in_both_engine_styles(world, style, preemption) -> None:
    loaded, prompts, alone = world
    # Enough for the longest and a little more: the others have to make room.
    blocks = -(-(max(map(len, prompts.values())) + NEW) // BLOCK_SIZE) + 4
    kv_bytes = blocks * block_bytes(loaded)
    answers = serve(loaded, prompts, kv_bytes=kv_bytes, preemption=preemption, engine_style=style)
    same(alone, answers)
    assert answers.num_preemptions > 0


def test_threads_do_not_change_a_bit(world) -> None:
    loaded, prompts, alone = world
    torch.set_num_threads(2)
    try:
        same(alone, serve(loaded, prompts))
    finally:
        torch.set_num_threads(1)


def test_weights_in_4_bits_give_the_bits_of_the_same_file_in_bfloat16(demo_model_path) -> None:
    prompts = {"a": list(range(900, 940)), "b": [7, 8, 9]}
    packed, plain = (serve(load_model(demo_model_path, precision=name), prompts) for name in ("w4a16", "bfloat16"))
    same(packed, plain)
