"""Whole models on a GPU whose place Triton's interpreter takes: tokens and logits are those of transformers.

All is as on a GPU but for the recorder, which runs recorded steps again. Blocks hold NaN until they are written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import make_model, oracle, run
from oracles import Reference, TieRule

from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.registry import load_model
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.build import BLOCK_SIZE, EngineConfig, assemble
from octavo_worker.runtime.devices import choose_device
from octavo_worker.runtime.gpu_computing import warm_up
from octavo_worker.runtime.graphs import GraphRunner

SMALL = {"hidden_size": 48, "head_dim": 16, "max_position_embeddings": 128}
SHAPES = {
    "llama": ("llama", {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}),
    "windows": ("mistral", {"sliding_window": 11}),
    "head norms": ("qwen3", {}),
}
# Of logits around 10. The interpreter cuts bfloat16 off where a GPU rounds.
TOLERANCE = {"float32": 2e-4, "float16": 0.05, "bfloat16": 0.6}
NEW = 5


class Answers:
    """An engine, and what it answers."""

    def __init__(self, loaded, *, num_blocks=40, **settings):
        model = loaded.config
        itemsize = getattr(torch, model.dtype).itemsize
        config = EngineConfig(
            model_path=Path(),
            kv_bytes=num_blocks * 2 * itemsize * model.num_layers * BLOCK_SIZE * model.num_kv_heads * model.head_dim,
            **{"poison_fresh_blocks": True, "max_sequences": 4, **settings},
        )
        self.built = assemble(config, loaded, attention_backends)
        self.engine = self.built.engine
        self.tokens, self.num_cached, self.events = {}, {}, []
        self.copies, self.loads = [], []
        transfer = self.engine._executor._kv
        begin = transfer.begin

        def watched(step, ops):
            self.copies += ops.copies
            self.loads += ops.loads
            begin(step, ops)

        transfer.begin = watched

    @property
    def runner(self):
        return self.engine._executor._runner

    def add(self, name, prompt, max_tokens=NEW, *, num_choices=1, **params):
        params = SamplingParams(max_tokens=max_tokens, **params)
        self.take(self.engine.add(Request(id=name, prompt=tuple(prompt), params=params, num_choices=num_choices)))

    def run(self):
        while self.engine.has_work:
            self.take(self.engine.step())
            self.engine.check_integrity()
        assert self.engine.stats().num_used_blocks == 0
        return self

    def take(self, deltas):
        for delta in deltas:
            assert delta.error is None, delta
            self.tokens.setdefault(delta.id, []).extend(delta.tokens)
            self.num_cached[delta.id] = max(self.num_cached.get(delta.id, 0), delta.num_cached)
            self.events += delta.events


def prompts_of(*lengths, seed=7):
    random = np.random.default_rng(seed)
    return [random.integers(2, 330, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    return path, make_model(path, "llama", **SMALL)


def rule_of(theirs, folder):
    return TieRule(Reference(model=lambda: theirs, cache_dir=folder / "answers", key="tiny"))


@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_in_chunks_beside_decoding_rows_and_prefix_hits(shape, tmp_path):
    family, values = SHAPES[shape]
    rule = rule_of(make_model(tmp_path, family, **SMALL, **values), tmp_path)
    loaded = load_model(tmp_path, precision="float32", device="cuda")
    answers = Answers(loaded, max_chunk_tokens=12, max_batch_tokens=24)
    assert answers.built.attention_backend == "triton_paged"
    assert answers.built.card.numerics_id.endswith("/interpreter")
    prompts = dict(enumerate(prompts_of(3, 17, 33)))
    for name, prompt in prompts.items():
        answers.add(str(name), prompt)
    answers.run()
    assert isinstance(answers.runner, GraphRunner)
    assert answers.runner.num_recordings > 0
    answers.add("again", prompts[2])
    answers.run()
    assert answers.num_cached["again", 0] == 32
    for (name, _), tokens in answers.tokens.items():
        prompt = prompts[2 if name == "again" else int(name)]
        rule.check_greedy(name, prompt, tokens, NEW)
        rule.check_generated(name, prompt, tokens)


def test_a_sequence_that_made_room_goes_on_from_host_memory(llama):
    folder, theirs = llama
    rule = rule_of(theirs, folder)
    loaded = load_model(folder, precision="float32", device="cuda")
    # The first needs a third block while the second, whose last one is not full, has two.
    answers = Answers(loaded, num_blocks=4, preemption="swap", swap_bytes=1 << 20)
    prompts = dict(enumerate(prompts_of(30, 20)))
    for name, prompt in prompts.items():
        answers.add(str(name), prompt, 8)
    answers.run()
    assert "preempted" in answers.events
    assert answers.loads
    for name, prompt in prompts.items():
        rule.check_greedy(str(name), prompt, answers.tokens[str(name), 0], 8)


def test_choices_share_their_prompts_blocks_and_draw_as_on_a_cpu(llama):
    folder, _ = llama
    (prompt,) = prompts_of(21)

    def draw(loaded, **settings):
        answers = Answers(loaded, **settings)
        answers.add("a", prompt, num_choices=3, temperature=0.7, top_p=0.9, seed=5)
        answers.run()
        assert len(answers.copies) == 2
        return answers.tokens

    gpu = load_model(folder, precision="float32", device="cuda")
    drawn = draw(gpu)
    assert len({tuple(tokens) for tokens in drawn.values()}) == 3
    assert drawn == draw(load_model(folder)) == draw(gpu, records_decode=False)


@pytest.mark.parametrize("precision", TOLERANCE)
def test_logits_are_those_of_transformers_up_to_rounding(precision, tmp_path):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    theirs = make_model(tmp_path, "qwen3", **SMALL, rope_parameters=rope)
    loaded = load_model(tmp_path, precision=precision, device="cuda")
    assert loaded.config.dtype == loaded.precision == precision
    (tokens,) = prompts_of(20)
    found, wanted = run(loaded.model, tokens), oracle(theirs, tokens)
    assert found.dtype == torch.float32
    error = (found - wanted).abs().max()
    assert error < TOLERANCE[precision] * wanted.abs().max() / 10


def test_auto_is_bfloat16_and_serves(llama):
    loaded = load_model(llama[0], precision="auto", device="cuda")
    assert loaded.precision == "bfloat16"
    answers = Answers(loaded)
    answers.add("a", prompts_of(18)[0])
    assert len(answers.run().tokens["a", 0]) == NEW
    assert answers.built.card.numerics_id.startswith("bfloat16/triton_paged-torch-")


def test_warming_up_writes_nothing_and_leaves_nothing_to_record(llama):
    answers = Answers(load_model(llama[0], precision="float32", device="cuda"), poison_fresh_blocks=False)
    pool = answers.engine._executor._kv._pool
    warm_up(answers.runner, max_rows=3, max_tokens=10, prompts=(2, 4, 16))
    assert not pool.any()
    assert answers.runner.num_recordings == 3
    for name, prompt in enumerate(prompts_of(3, 4, 5)):
        answers.add(str(name), prompt, 3)
    answers.run()
    assert answers.runner.num_recordings == 3


def test_the_interpreter_is_taken_only_when_it_is_asked_for():
    assert choose_device("cuda") == "cuda"
    assert choose_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
