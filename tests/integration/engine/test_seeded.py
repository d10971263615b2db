"""Seeded draws: the same tokens alone, beside unseeded requests, and after preemption, by the tie rule."""

from __future__ import annotations

import numpy as np
import pytest
from bench import EngineBench

from octavo_worker.verify.noise import Label, gumbels, noise_key

NEW = 48
WAYS = {
    "plain": {"temperature": 0.8},
    "top_k": {"temperature": 1.0, "top_k": 40},
    "top_p": {"temperature": 0.9, "top_p": 0.9},
    "both": {"temperature": 1.2, "top_k": 100, "top_p": 0.95},
}


def passes(logits_V, way, slack):
    """Which tokens pass the filters of a way; a positive slack lets those pass too that rounding may let in."""
    order = np.argsort(-logits_V, kind="stable")
    weights = np.exp((logits_V[order] - logits_V[order[0]]) / way["temperature"])
    kept = np.ones(len(order), bool)
    if way.get("top_k"):
        kept &= logits_V[order] >= logits_V[order[way["top_k"] - 1]] - slack
    weights *= kept
    before = (np.cumsum(weights) - weights) / weights.sum()
    kept &= before < way.get("top_p", 2.0) + slack
    passed = np.zeros(len(order), bool)
    passed[order[kept]] = True
    return passed


def scores_of(prompt, way, seed):
    """Score of every token at each position of an answer: logit with noise, in units of logits."""

    def scores(index, logits_V):
        key = noise_key(seed=seed, choice=0, position=len(prompt) + index, label=Label.TARGET)
        found = logits_V + way["temperature"] * gumbels(key, np.arange(len(logits_V)))
        best = found[passes(logits_V, way, 0.0)].max()
        # At the border of a filter a token may win that does not pass, but it is not missed when it does not.
        return np.where(passes(logits_V, way, 1e-3), np.minimum(found, best), -np.inf)

    return scores


@pytest.fixture(scope="module")
def requests(demo_prompts):
    prompts = demo_prompts[1:14:3]
    return {
        f"{name} {index}": (prompt, way, 1000 * index + number)
        for number, (name, way) in enumerate(WAYS.items())
        for index, prompt in enumerate(prompts[:3])
    }


@pytest.fixture(scope="module")
def alone(demo, requests):
    bench = EngineBench(demo)
    for name, (prompt, way, seed) in requests.items():
        bench.add(name, prompt, NEW, seed=seed, **way)
        bench.run()
    assert not bench.errors
    return bench.tokens


def compare(rule, requests, tokens, alone):
    for name, (prompt, way, seed) in requests.items():
        rule.check_drawn(name, prompt, tokens[name], alone[name], scores_of(prompt, way, seed))


def test_draws_differ_between_seeds_and_are_not_greedy(alone, requests):
    assert len({tuple(tokens) for tokens in alone.values()}) == len(requests)


def test_beside_unseeded_requests(demo, demo_rule, demo_prompts, requests, alone):
    bench = EngineBench(demo)
    for index, (name, (prompt, way, seed)) in enumerate(requests.items()):
        bench.add(f"other {index}", demo_prompts[index % 15], 40, temperature=1.0, seed=12345 + index)
        bench.add(name, prompt, NEW, seed=seed, salt=str(index), **way)
    bench.run()
    compare(demo_rule, requests, bench.tokens, alone)


def test_after_preemption(demo, demo_rule, requests, alone):
    bench = EngineBench(demo, num_blocks=20)
    for name, (prompt, way, seed) in requests.items():
        bench.add(name, prompt, NEW, seed=seed, **way)
    bench.run()
    assert bench.num_preemptions > 0
    compare(demo_rule, requests, bench.tokens, alone)
