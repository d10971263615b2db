"""Measures what choosing tokens, and planning, inputs and commit, take of a decode step with 32 sequences, in-process.

Usage: python -m benchmarks.sampling MODEL [--ways top_p,greedy] [--precision auto] [--steps 40] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from engine import make_prompts
from result import Check, Result, report

from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.plugins import build_engine
from octavo_worker.runtime.build import BuiltEngine, EngineConfig
from octavo_worker.verify.base import ScoredToken, WantedRow

NUM_ROWS = 32
MOST = 0.15
# Everything that is neither the model nor the choice: planning, inputs, commit, handing over.
MOST_REST = 0.10
SCHEMA = '{"type": "object", "properties": {"title": {"type": "string"}, "pages": {"type": "integer"}}}'
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "plain": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "hot": {"temperature": 1.5, "top_p": 0.95},
    "penalties": {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "logprobs": {"temperature": 0.8, "top_p": 0.9, "num_logprobs": 5},
    "schema": {"temperature": 0.8, "top_p": 0.9},
}
# Promised of these alone; the others are told.
PROMISED = ("greedy", "top_p", "plain", "top_k", "min_p")


class TimedVerifier:
    """Notes how long each call takes; otherwise the one inside."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent_s = 0.0

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> Any:
        """The verdicts, timed."""
        started = time.perf_counter()
        try:
            return self._inner.verify(rows, logits_SV)
        finally:
            self.spent_s += time.perf_counter() - started

    def score(self, tokens: Sequence[ScoredToken], logits_SV: Tensor) -> Any:
        """Log-probabilities of the prompt, which are no part of a decode step."""
        return self._inner.score(tokens, logits_SV)


class TimedRunner:
    """The same for the model's forward pass and logits."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent_s = 0.0

    def forward(self, inputs: Any) -> Tensor:
        """Hidden states, timed."""
        started = time.perf_counter()
        hidden_TD = self._inner.forward(inputs)
        self.spent_s += time.perf_counter() - started
        return hidden_TD

    def logits(self, *args: Any) -> Iterator[Any]:
        """Logits; what their reader does between two slices is not counted."""
        slices = self._inner.logits(*args)
        while True:
            started = time.perf_counter()
            found = next(slices, None)
            self.spent_s += time.perf_counter() - started
            if found is None:
                return
            yield found

    def poison(self, blocks: list[int]) -> None:
        """Untimed."""
        self._inner.poison(blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Seconds of a decode step: whole, choosing tokens, and what is neither that nor the model."""

    step_s: float
    sampling_s: float
    rest_s: float


def measure(built: BuiltEngine, timed: TimedVerifier, runner: TimedRunner, way: str, num_steps: int) -> Split:
    """The medians of the quicker half of the steps."""
    values = dict(WAYS[way])
    if way == "schema":
        values["grammar"] = built.grammars.compile("json_schema", SCHEMA)
        values["stop_token_ids"] = frozenset(built.eos_ids)
    for number, prompt in enumerate(make_prompts(built, count=NUM_ROWS, num_tokens=128)):
        params = SamplingParams(max_tokens=num_steps + 400, seed=number, **values)
        built.engine.add(Request(id=f"{way}{number}", prompt=prompt, params=params))
    found: list[tuple[float, float, float]] = []
    while built.engine.has_work and len(found) < num_steps:
        before, computed, started = timed.spent_s, runner.spent_s, time.perf_counter()
        built.engine.step()
        step_s, stats = time.perf_counter() - started, built.engine.stats()
        rest_s = step_s - (timed.spent_s - before) - (runner.spent_s - computed)
        # Rows of documents end early.
        if stats.num_prompt_tokens == 0 and stats.num_decode_tokens >= (1 if way == "schema" else NUM_ROWS):
            found.append((step_s, (timed.spent_s - before) * NUM_ROWS / stats.num_decode_tokens, rest_s))
    for number in range(NUM_ROWS):
        built.engine.abort(f"{way}{number}")
    while built.engine.has_work:
        built.engine.step()
    quick = sorted(found)[: max(1, len(found) // 2)]
    step_s, sampling_s, rest_s = (statistics.median(part) for part in zip(*quick, strict=True))
    return Split(step_s=step_s, sampling_s=sampling_s, rest_s=rest_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    built = build_engine(EngineConfig(model_path=args.model, num_threads=args.threads, precision=args.precision))
    executor: Any = built.engine._executor  # the only place where choosing is apart from the rest
    timed = executor._verifier = TimedVerifier(executor._verifier)
    runner = executor._runner = TimedRunner(executor._runner)
    figures: dict[str, float] = {}
    checks: list[Check] = []
    for way in args.ways.split(","):
        split = measure(built, timed, runner, way, args.steps)
        figures |= {
            f"{way}_step_ms": split.step_s * 1e3,
            f"{way}_sampling_ms": split.sampling_s * 1e3,
            f"{way}_rest_ms": split.rest_s * 1e3,
        }
        if way in PROMISED:
            share = split.sampling_s / split.step_s
            checks.append(Check(name=f"{way}: sampling / decode step", value=share, at_most=MOST))
        if way == "greedy":
            share = split.rest_s / split.step_s
            checks.append(Check(name="planning, inputs, commit / decode step", value=share, at_most=MOST_REST))
    settings = {"model": built.card.name, "numerics_id": built.card.numerics_id, "num_rows": NUM_ROWS}
    return report(
        Result(benchmark="sampling", settings=settings, figures=figures, checks=tuple(checks)),
        args.json,
    )


if __name__ == "__main__":
    sys.exit(main())
