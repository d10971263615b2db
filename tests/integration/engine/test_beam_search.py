"""Beam search and several choices over real models: against transformers, and against each choice alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bench import EngineBench
from checkpoints import make_llama

from octavo_worker.engine.types import BeamParams, FinishReason, Request, SamplingParams
from octavo_worker.models.registry import load_model

# Sums of log-probabilities of a few dozen tokens, each rounded to float32.
TOLERANCE = 1e-3


def beams_of(bench, requests):
    """What the searches found: by request, (tokens, score), best first."""
    found = {request.id: [] for request in requests}
    for request in requests:
        assert not bench.engine.add(request)
    while bench.engine.has_work:
        deltas = bench.engine.step()
        bench.engine.check_integrity()
        for delta in deltas:
            assert delta.error is None
            if delta.finish is not None:
                found[delta.id.request].append((list(delta.tokens), delta.score))
    assert bench.engine.stats().num_used_blocks == 0
    return found


def beams_of_transformers(model, prompt, *, width, max_tokens, stop, length_penalty, early_stopping):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=length_penalty,
            early_stopping="never" if early_stopping is None else early_stopping,
            do_sample=False,
            eos_token_id=list(stop) or None,
            pad_token_id=-1 if not stop else model.config.vocab_size - 1,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = []
    for row, score in zip(answer.sequences[:, len(prompt) :].tolist(), answer.sequences_scores.tolist(), strict=True):
        end = next((index + 1 for index, token in enumerate(row) if token in stop), max_tokens)
        found.append((row[:end], score))
    return found


def check(found, expected):
    """Equal sequences with equal scores; only sequences whose scores are ties may stand in another order."""
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=TOLERANCE)
    scores = {tuple(tokens): score for tokens, score in expected}
    for (tokens, score), (other, _) in zip(found, expected, strict=True):
        if tokens != other:
            assert scores[tuple(tokens)] == pytest.approx(score, abs=TOLERANCE)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beams")
    model = make_llama(folder, max_position_embeddings=256, hidden_size=96, head_dim=16)
    return model, load_model(folder)


@pytest.mark.parametrize("early_stopping", [True, False, None])
@pytest.mark.parametrize(("stop", "length_penalty"), [((), 1.0), ((0, 7, 11), 1.0), (tuple(range(0, 60)), 0.3)])
def test_beams_of_a_random_model_are_those_of_transformers(small, stop, length_penalty, early_stopping):
    model, loaded = small
    random = np.random.default_rng(5)
    rules = {"width": 4, "max_tokens": 20, "length_penalty": length_penalty, "early_stopping": early_stopping}
    prompts = {f"p{length}": random.integers(60, 329, length).tolist() for length in (3, 16, 41)}
    requests = [
        Request(
            id=name,
            prompt=tuple(prompt),
            params=SamplingParams(max_tokens=20, stop_token_ids=frozenset(stop)),
            beam=BeamParams(width=4, length_penalty=length_penalty, early_stopping=early_stopping),
        )
        for name, prompt in prompts.items()
    ]
    found = beams_of(EngineBench(loaded), requests)
    for name, prompt in prompts.items():
        check(found[name], beams_of_transformers(model, prompt, stop=stop, **rules))


@pytest.mark.parametrize("swap_bytes", [0, 1 << 24])
def test_beams_are_the_same_when_they_are_preempted_and_beside_others(small, swap_bytes):
    _, loaded = small
    random = np.random.default_rng(6)
    requests = [
        Request(
            id=f"b{index}",
            prompt=tuple(random.integers(60, 329, length).tolist()),
            params=SamplingParams(max_tokens=24),
            beam=BeamParams(width=3),
        )
        for index, length in enumerate((20, 33, 17, 40))
    ]
    alone = EngineBench(loaded)
    expected = {request.id: beams_of(alone, [request])[request.id] for request in requests}
    crowded = EngineBench(
        loaded, num_blocks=16, preemption="swap" if swap_bytes else "recompute", swap_bytes=swap_bytes
    )
    found = beams_of(crowded, requests)
    for request in requests:
        check(found[request.id], expected[request.id])


def test_choices_are_those_that_each_seed_and_choice_gives_alone(small):
    _, loaded = small
    prompt = tuple(np.random.default_rng(8).integers(60, 329, 37).tolist())
    params = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.95, seed=11)

    def run(num_choices, **settings):
        bench, tokens, ends = EngineBench(loaded, **settings), {}, {}
        bench.engine.add(Request(id="n", prompt=prompt, params=params, num_choices=num_choices))
        while bench.engine.has_work:
            for delta in bench.engine.step():
                tokens.setdefault(delta.id.choice, []).extend(delta.tokens)
                ends[delta.id.choice] = delta.finish
            bench.engine.check_integrity()
        assert set(ends.values()) == {FinishReason.LENGTH}
        return tokens

    all_choices = run(4)
    assert all_choices[0] == run(1)[0]
    assert len({tuple(tokens) for tokens in all_choices.values()}) == 4
    # Small pools and chunks: copies, preemptions, and prefix hits instead of shared tails.
    assert run(4, max_chunk_tokens=5) == all_choices
    assert run(4, num_blocks=16, max_sequences=4) == all_choices


def demo_requests(demo_prompts, num_tokens, stop):
    return [
        Request(
            id=str(index),
            prompt=tuple(prompt),
            params=SamplingParams(max_tokens=num_tokens, stop_token_ids=frozenset(stop)),
            beam=BeamParams(width=4),
        )
        for index, prompt in enumerate(demo_prompts)
    ]


def check_demo(demo, demo_reference, prompts, num_tokens):
    stop = tuple(demo.config.eos_ids)
    found = beams_of(EngineBench(demo), demo_requests(prompts, num_tokens, stop))
    for index, prompt in enumerate(prompts):
        rules = {"width": 4, "max_tokens": num_tokens, "length_penalty": 1.0, "early_stopping": False}
        check(found[str(index)], beams_of_transformers(demo_reference._get(), prompt, stop=stop, **rules))


def test_beams_of_the_demo_model_are_those_of_transformers(demo, demo_reference, demo_prompts):
    check_demo(demo, demo_reference, sorted(demo_prompts, key=len)[:2], 10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_beams_of_the_demo_model_are_those_of_transformers_on_all_short_prompts(demo, demo_reference, demo_prompts):
    check_demo(demo, demo_reference, [prompt for prompt in demo_prompts if len(prompt) < 300], 40)
