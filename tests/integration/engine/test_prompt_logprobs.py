"""Log-probabilities of prompts and of drawn tokens are those of transformers, however the prompt is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bench import EngineBench
from checkpoints import make_llama
from oracles import Reference

from octavo_worker.engine.plan import BatchPlan, RowPlan
from octavo_worker.engine.types import SamplingParams, SeqId
from octavo_worker.models.registry import load_model

NUM_TOP = 3


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    model = make_llama(folder, max_position_embeddings=256)
    prompt = np.random.default_rng(1).integers(2, 330, 140).tolist()
    return load_model(folder), Reference(model=lambda: model, cache_dir=folder / "answers", key="logprobs"), prompt


def executor_of(loaded):
    return EngineBench(loaded).built.engine._executor


def run_prompt(loaded, prompt, chunk, params):
    """Feed a prompt in chunks, asking for everything; returns its log-probabilities and the last row's result."""
    executor, found, result = executor_of(loaded), [], None
    seq_id, block_size = SeqId("a", 0), 16
    for start in range(0, len(prompt), chunk):
        end = min(len(prompt), start + chunk)
        first, last = -(-start // block_size), -(-end // block_size)
        row = RowPlan(
            id=seq_id,
            start=start,
            tokens=tuple(prompt[start:end]),
            first_block=first,
            new_blocks=tuple(range(first, last)),
            wants=range(start, end),
            scored=tuple(prompt[start + 1 : end + 1]),
            draws=(0,) if end == len(prompt) else (),
            params=params if start == 0 else None,
            num_prompt_tokens=len(prompt),
        )
        result = executor.run(BatchPlan(step=start, rows=(row,))).rows[seq_id]
        assert result.error is None
        assert len(result.prompt_logprobs) == len(row.scored)
        found += result.prompt_logprobs
    return found, result


def check(told, logits_V, token):
    """The reference's own, within 1e-3; where it says otherwise who comes first, by less than that."""
    expected = torch.from_numpy(logits_V).log_softmax(-1)
    assert told.logprob == pytest.approx(float(expected[token]), abs=1e-3)
    assert abs(float((expected > expected[token]).sum()) + 1 - told.rank) <= int(
        ((expected - expected[token]).abs() < 1e-3).sum()
    )
    best = expected.topk(NUM_TOP).values.tolist()
    assert [value for _, value in told.top] == pytest.approx(best, abs=1e-3)
    assert [float(expected[i]) for i, _ in told.top] == pytest.approx(best, abs=1e-3)


PARAMS = SamplingParams(
    max_tokens=1, temperature=0.9, top_p=0.8, seed=5, num_logprobs=NUM_TOP, num_prompt_logprobs=NUM_TOP
)


@pytest.mark.parametrize("chunk", [1, 7, 16, 140])
def test_a_small_models_prompt_and_draw(small, chunk):
    loaded, reference, prompt = small
    found, last = run_prompt(loaded, prompt, chunk, PARAMS)
    assert len(found) == len(prompt) - 1
    for told, logits_V, token in zip(found, reference.logits(prompt[:1], prompt[1:]), prompt[1:], strict=True):
        check(told, logits_V, token)
    check(last.logprobs[0], reference.logits(prompt, last.tokens)[0], last.tokens[0])


def test_the_demo_models_prompt_and_draw(demo, demo_reference, demo_prompts):
    prompt = next(prompt for prompt in demo_prompts if 60 < len(prompt) < 200)
    found, last = run_prompt(demo, prompt, 48, PARAMS)
    for told, logits_V, token in zip(found, demo_reference.logits(prompt[:1], prompt[1:]), prompt[1:], strict=True):
        check(told, logits_V, token)
    check(last.logprobs[0], demo_reference.logits(prompt, last.tokens)[0], last.tokens[0])
