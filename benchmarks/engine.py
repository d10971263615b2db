"""Measures the engine in-process against `transformers.generate` on the same weights, prompts and cores, as ratios.

Usage: python benchmarks/engine.py MODEL [--only throughput,gap,prefix] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from result import Check, Result, report

from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.models.registry import find_model
from octavo_worker.plugins import build_engine
from octavo_worker.runtime.build import BuiltEngine, EngineConfig

ROOT = Path(__file__).resolve().parent.parent


def make_prompts(built: BuiltEngine, *, count: int, num_tokens: int) -> list[tuple[int, ...]]:
    """Different stretches of a long real text."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    ids = Tokenizer(built.bundle).encode(text)
    while len(ids) < num_tokens + 61 * count:
        ids = ids + ids
    return [tuple(ids[61 * i : 61 * i + num_tokens]) for i in range(count)]


class Driver:
    """Runs requests through an engine and notes when each token came."""

    def __init__(self, built: BuiltEngine) -> None:
        self.engine = built.engine
        self.times: dict[str, list[float]] = {}
        self._number = 0

    def add(self, prompt: tuple[int, ...], max_tokens: int, salt: str = "") -> str:
        """Submit a greedy request that ignores the end of sequence; returns its id."""
        self._number += 1
        name = f"r{self._number}"
        self.times[name] = []
        self.engine.add(Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens), salt=salt))
        return name

    def step(self) -> None:
        """One step."""
        deltas = self.engine.step()
        now = time.perf_counter()
        for delta in deltas:
            assert delta.error is None, delta.error
            self.times[delta.id.request].extend([now] * len(delta.tokens))

    def drain(self) -> None:
        """Run to the end."""
        while self.engine.has_work:
            self.step()

    def timed(self, prompts: list[tuple[int, ...]], max_tokens: int, salt: str) -> float:
        """Seconds to answer all of them at once."""
        started = time.perf_counter()
        for prompt in prompts:
            self.add(prompt, max_tokens, salt)
        self.drain()
        return time.perf_counter() - started


def load_peer(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    source = find_model(path)
    if source.is_file():
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return model.eval()


def peer_s(model: Any, prompt: tuple[int, ...], max_tokens: int) -> float:
    """Seconds of one greedy answer."""
    ids = torch.tensor([prompt])
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - started


def throughput(built: BuiltEngine, path: Path, rounds: int) -> tuple[dict[str, float], list[Check]]:
    """32 at once and one alone, against transformers one by one; best of some interleaved rounds each."""
    prompts, new = make_prompts(built, count=32, num_tokens=128), 64
    peer = load_peer(path)
    driver = Driver(built)
    driver.timed(prompts[:1], 2, "warm")
    peer_s(peer, prompts[0], 2)
    many, alone, others = [], [], []
    for turn in range(rounds):
        others += [peer_s(peer, prompt, new) for prompt in prompts[2 * turn : 2 * turn + 2]]
        alone += [driver.timed([prompt], new, f"alone{turn}") for prompt in prompts[2 * turn : 2 * turn + 2]]
        many.append(driver.timed(prompts, new, f"many{turn}"))
    figures = {
        "transformers_tokens_per_s": new / min(others),
        "alone_tokens_per_s": new / min(alone),
        "many_tokens_per_s": 32 * new / min(many),
    }
    peers = figures["transformers_tokens_per_s"]
    return figures, [
        Check(name="32 at once / transformers", value=figures["many_tokens_per_s"] / peers, at_least=7.0),
        Check(name="one alone / transformers", value=figures["alone_tokens_per_s"] / peers, at_least=1.3),
    ]


def gap(built: BuiltEngine) -> tuple[dict[str, float], list[Check]]:
    """The 95th percentile of the time between tokens of 8 streams, alone and while a prompt of 2,000 tokens comes."""
    driver = Driver(built)
    prompts = make_prompts(built, count=8, num_tokens=128)
    long = make_prompts(built, count=1, num_tokens=2000)[0]
    names = [driver.add(prompt, 400, "gap") for prompt in prompts]
    while any(len(driver.times[name]) < 40 for name in names):
        driver.step()
    first = time.perf_counter()
    for _ in range(40):
        driver.step()
    middle = time.perf_counter()
    arriving = driver.add(long, 1, "gap")
    while not driver.times[arriving]:
        driver.step()
    last = time.perf_counter()
    for name in names:
        driver.engine.abort(name)
    driver.drain()
    normal, beside = (_p95(driver, names, *span) for span in ((first, middle), (middle, last)))
    figures = {"gap_p95_s": normal, "gap_p95_beside_prompt_s": beside, "long_prompt_s": last - middle}
    return figures, [Check(name="gap beside a prompt / normal gap", value=beside / normal, at_most=3.0)]


def _p95(driver: Driver, names: list[str], first: float, last: float) -> float:
    gaps: list[float] = []
    for name in names:
        times = [t for t in driver.times[name] if first <= t <= last]
        gaps += [b - a for a, b in itertools.pairwise(times)]
    return statistics.quantiles(gaps, n=20)[-1]


def prefix(built: BuiltEngine) -> tuple[dict[str, float], list[Check]]:
    """How much sooner the first token of a prompt comes when its 1,000 tokens were seen before."""
    driver = Driver(built)
    cold, warm = [], []
    for turn, prompt in enumerate(make_prompts(built, count=3, num_tokens=1000)):
        cold.append(driver.timed([prompt], 1, f"prefix{turn}"))
        warm.append(driver.timed([(*prompt, 5, 6, 7)], 1, f"prefix{turn}"))
    figures = {"first_token_cold_s": min(cold), "first_token_warm_s": min(warm)}
    return figures, [Check(name="cold / warm first token", value=min(cold) / min(warm), at_least=5.0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", default="throughput,gap,prefix")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int)
    # transformers computes in float32.
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    built = build_engine(EngineConfig(model_path=args.model, num_threads=args.threads, precision=args.precision))
    figures: dict[str, float] = {}
    checks: list[Check] = []
    for name in args.only.split(","):
        found = {"throughput": lambda: throughput(built, args.model, args.rounds), "gap": lambda: gap(built)}.get(
            name, lambda: prefix(built)
        )()
        figures.update(found[0])
        checks += found[1]
    settings = {"model": built.card.name, "digest": built.card.digest, "numerics_id": built.card.numerics_id}
    return report(
        Result(benchmark="engine", settings=settings, figures=figures, checks=tuple(checks)),
        args.json,
    )


if __name__ == "__main__":
    sys.exit(main())
