"""What a beam search costs in Python, step by step: plan, inputs, commit. No model, no forward pass.

Usage: python -m benchmarks.forks [--json FILE] [--widths 4 16] [--contexts 200 2000 8000]

Microseconds a step for contexts of several lengths. With costs that do not grow with the context, those of a width are
alike.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

from benchmarks.result import Result, report

from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.plan import BatchPlan, RowResult, StepResult
from octavo_worker.engine.ports import LocalKV, NeverExit
from octavo_worker.engine.queueing import FcfsQueue
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.types import BeamParams, Limits, Request, SamplingParams
from octavo_worker.runtime.inputs import InputBuilder

BLOCK_SIZE, NUM_BLOCKS = 16, 16_384
NUM_STEPS, NUM_WARM = 100, 10


class Searching:
    """An executor that builds the inputs of a model, and has none: candidates are drawn by chance, so beams fork."""

    lookahead = 0

    def __init__(self) -> None:
        self._inputs = InputBuilder(block_size=BLOCK_SIZE, max_blocks=NUM_BLOCKS // 8)
        self._random = random.Random(1)

    def run(self, plan: BatchPlan) -> StepResult:
        """One result a row."""
        self._inputs.renew(plan.forks, plan.gone)
        if plan.rows:
            self._inputs.build(plan.rows)
        draw = self._random.random
        return StepResult(
            rows={
                row.id: RowResult(
                    candidates=tuple((token, -draw()) for token in range(row.num_candidates))
                    if row.num_candidates
                    else None
                )
                for row in plan.rows
            }
        )


def step_us(*, width: int, num_prompt_tokens: int) -> float:
    """Median microseconds of a step of one search with penalties, in Python alone."""
    limits = Limits(max_batch_tokens=4096, max_sequence_tokens=NUM_BLOCKS * BLOCK_SIZE)
    scheduler = Scheduler(
        pool=BlockPool(NUM_BLOCKS, BLOCK_SIZE),
        limits=limits,
        queue=FcfsQueue(),
        kv=LocalKV(),
        exit_policy=NeverExit(),
    )
    executor = Searching()
    scheduler.add(
        Request(
            id="search",
            prompt=tuple(token % 977 for token in range(num_prompt_tokens)),
            params=SamplingParams(max_tokens=10_000, repetition_penalty=1.1, frequency_penalty=0.1),
            beam=BeamParams(width=width),
        )
    )
    times_us: list[float] = []
    while len(times_us) < NUM_WARM + NUM_STEPS:
        began_s = time.perf_counter()
        plan = scheduler.plan()
        scheduler.commit(plan, executor.run(plan))
        if any(row.num_candidates for row in plan.rows):
            times_us.append((time.perf_counter() - began_s) * 1e6)
    return statistics.median(times_us[NUM_WARM:])


def main() -> int:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", nargs="*", type=int, default=[4, 16])
    parser.add_argument("--contexts", nargs="*", type=int, default=[200, 2_000, 8_000])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures = {
        f"width_{width}.context_{context}.step_us": round(step_us(width=width, num_prompt_tokens=context), 1)
        for width in args.widths
        for context in args.contexts
    }
    settings = {"num_steps": NUM_STEPS, "block_size": BLOCK_SIZE, "widths": args.widths, "contexts": args.contexts}
    return report(Result(benchmark="forks", settings=settings, figures=figures), args.json)


if __name__ == "__main__":
    sys.exit(main())
