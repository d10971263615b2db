"""The demo model on twenty real prompts: greedy tokens are those of transformers, however they are batched."""

from __future__ import annotations

import pytest
from bench import EngineBench

NEW = 64


def named(prompts, prefix="p"):
    return {f"{prefix}{index}": prompt for index, prompt in enumerate(prompts)}


def check(bench, rule, names):
    assert not bench.errors
    for name, prompt in names.items():
        rule.check_greedy(name, prompt, bench.tokens[name], NEW)


def run_alone(bench, names):
    for name, prompt in names.items():
        bench.add(name, prompt, NEW)
        bench.run()


def run_at_once(bench, names, *, salted=True):
    for index, (name, prompt) in enumerate(names.items()):
        bench.add(name, prompt, NEW, salt=str(index) if salted else "")
    bench.run()


def test_some_prompts_alone_and_again_from_the_prefix_cache(demo, demo_prompts, demo_rule):
    bench = EngineBench(demo)
    cold, warm = (named(demo_prompts[::6], prefix) for prefix in ("cold", "warm"))
    run_alone(bench, cold)
    run_alone(bench, warm)
    assert all(bench.num_cached[name] == (len(prompt) - 1) // 16 * 16 for name, prompt in warm.items())
    check(bench, demo_rule, cold | warm)


def test_32_at_once(demo, demo_prompts, demo_rule):
    bench = EngineBench(demo)
    names = named((demo_prompts * 2)[:32])
    run_at_once(bench, names)
    assert not any(bench.num_cached.values())
    check(bench, demo_rule, names)


def test_in_a_pool_so_small_that_sequences_are_preempted(demo, demo_prompts, demo_rule):
    bench = EngineBench(demo, num_blocks=24, max_chunk_tokens=17)
    names = named([prompt for prompt in demo_prompts if len(prompt) < 200])
    run_at_once(bench, names, salted=False)
    assert bench.num_preemptions > 0
    check(bench, demo_rule, names)


@pytest.mark.slow
def test_all_prompts_alone_are_what_generate_answers(demo, demo_prompts, demo_rule):
    bench = EngineBench(demo)
    names = named(demo_prompts)
    run_alone(bench, names)
    check(bench, demo_rule, names)
    for name, prompt in names.items():
        demo_rule.check_generated(name, prompt, bench.tokens[name])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 512])
@pytest.mark.parametrize("salted", [True, False], ids=["without hits", "with hits"])
def test_32_at_once_whatever_the_chunk(demo, demo_prompts, demo_rule, chunk, salted):
    bench = EngineBench(demo, max_chunk_tokens=chunk)
    names = named((demo_prompts * 2)[:32])
    run_at_once(bench, names, salted=salted)
    check(bench, demo_rule, names)
