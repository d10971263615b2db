"""Measures what the engine's policies are worth, as ratios in one run over one loaded model.

Two styles: gaps between tokens of streams while prompts arrive. Preemption: by recomputation and by swap. Several
choices of a prompt against as many requests: blocks and time.

Usage: python benchmarks/engine_styles.py MODEL [--only styles,preemption,choices] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine import Driver, make_prompts
from result import Check, Result, report

from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.base import LoadedModel
from octavo_worker.models.registry import load_model
from octavo_worker.plugins import attention_backends
from octavo_worker.runtime.build import BLOCK_SIZE, BuiltEngine, EngineConfig, assemble

Found = tuple[dict[str, float], list[Check]]


def build(loaded: LoadedModel, *, num_blocks: int = 1024, **settings: object) -> BuiltEngine:
    model = loaded.config
    # Two tensors, K and V, of four bytes a number.
    block_bytes = 2 * 4 * model.num_layers * BLOCK_SIZE * model.num_kv_heads * model.head_dim
    config = EngineConfig(model_path=Path(), kv_bytes=num_blocks * block_bytes, **settings)
    return assemble(config, loaded, attention_backends)


def styles(loaded: LoadedModel) -> Found:
    """Gaps of 8 streams while three prompts of 1,000 tokens come one after the other."""
    figures: dict[str, float] = {}
    for style in ("v1", "v0"):
        built = build(loaded, engine_style=style)
        driver = Driver(built)
        streams = make_prompts(built, count=8, num_tokens=64)
        prompts = make_prompts(built, count=3, num_tokens=1000)
        names = [driver.add(prompt, 400, "stream") for prompt in streams]
        while any(len(driver.times[name]) < 5 for name in names):
            driver.step()
        first = time.perf_counter()
        for number, prompt in enumerate(prompts):
            arriving = driver.add(prompt, 1, f"prompt{number}")
            began = len(driver.times[names[0]])
            # The next comes when this one is answered, and not before the streams had 20 tokens.
            while not driver.times[arriving] or len(driver.times[names[0]]) < began + 20:
                driver.step()
        gaps = [
            later - earlier
            for name in names
            for earlier, later in itertools.pairwise(t for t in driver.times[name] if t >= first)
        ]
        for name in names:
            driver.engine.abort(name)
        driver.drain()
        figures[f"{style}_gap_p50_s"] = statistics.median(gaps)
        figures[f"{style}_gap_p99_s"] = statistics.quantiles(gaps, n=100)[-1]
    ratio = figures["v0_gap_p99_s"] / figures["v1_gap_p99_s"]
    return figures, [Check(name="p99 gap of v0 / of v1", value=ratio, at_least=2.0)]


def preemption(loaded: LoadedModel) -> Found:
    """Eight answers over long prompts in a pool for about half of them; the tokens are the same both ways."""
    figures: dict[str, float] = {}
    for way in ("recompute", "swap"):
        built = build(loaded, num_blocks=100, preemption=way)
        driver = Driver(built)
        prompts = make_prompts(built, count=8, num_tokens=250)
        num_preempted, num_fed = 0, 0
        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            driver.add(prompt, 96, f"p{number}")
        while driver.engine.has_work:
            driver.step()
            stats = driver.engine.stats()
            num_preempted += stats.num_preempted
            num_fed += stats.num_decode_tokens + stats.num_prompt_tokens
        figures[f"{way}_s"] = time.perf_counter() - started
        figures[f"{way}_num_preempted"] = num_preempted
        figures[f"{way}_num_computed_tokens"] = num_fed
    # Every known token once, but for the last of each answer.
    least = 8 * (250 + 95)
    return figures, [
        Check(
            name="tokens computed with swap / needed", value=figures["swap_num_computed_tokens"] / least, at_most=1.0
        ),
        Check(name="time with recomputation / with swap", value=figures["recompute_s"] / figures["swap_s"]),
    ]


def choices(loaded: LoadedModel) -> Found:
    """Four choices of one prompt of 500 tokens, and four requests for it that share nothing."""
    built = build(loaded)
    engine, prompt = built.engine, make_prompts(built, count=1, num_tokens=500)[0]

    def run(requests: list[Request]) -> tuple[float, int]:
        most, started = 0, time.perf_counter()
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()
            most = max(most, engine.stats().num_used_blocks)
        return time.perf_counter() - started, most

    params = SamplingParams(max_tokens=64, temperature=0.8, top_p=0.9, seed=7)
    apart_s, apart = run([Request(id=f"r{n}", prompt=prompt, params=params, salt=str(n)) for n in range(4)])
    together_s, together = run([Request(id="n", prompt=prompt, params=params, num_choices=4, salt="n")])
    figures = {"apart_s": apart_s, "together_s": together_s, "apart_blocks": apart, "together_blocks": together}
    return figures, [
        Check(name="blocks of four choices / of four requests", value=together / apart, at_most=0.4),
        Check(name="time of four requests / of four choices", value=apart_s / together_s),
    ]


PARTS: dict[str, Callable[[LoadedModel], Found]] = {"styles": styles, "preemption": preemption, "choices": choices}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    loaded = load_model(args.model)
    figures: dict[str, float] = {}
    checks: list[Check] = []
    for name in args.only.split(","):
        found = PARTS[name](loaded)
        figures.update({f"{name}_{key}": value for key, value in found[0].items()})
        checks += found[1]
    settings = {"model": loaded.name, "digest": loaded.digest, "num_threads": torch.get_num_threads()}
    return report(
        Result(benchmark="engine_styles", settings=settings, figures=figures, checks=tuple(checks)), args.json
    )


if __name__ == "__main__":
    sys.exit(main())
