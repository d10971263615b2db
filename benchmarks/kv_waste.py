"""Measures how many reserved slots of the KV pool hold nothing, in a workload with ShareGPT's lengths.

Usage: python -m benchmarks.kv_waste [--requests 400] [--json FILE]

The real scheduler and block pool; the executor answers with one token wherever one is wanted, so only time is missing.
After each step: slots of all blocks that a sequence holds, and those of them whose keys and values were computed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.result import Check, Result, report

from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.core import Engine
from octavo_worker.engine.plan import BatchPlan, RowResult, StepResult
from octavo_worker.engine.ports import LocalKV, NeverExit
from octavo_worker.engine.queueing import FcfsQueue
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.types import Limits, Request, SamplingParams

BLOCK_SIZE = 16
# Means of ShareGPT as the vLLM paper gives them (Kwon et al. 2023, figure 11). Their spread is ours: both lengths
# lognormal, prompts the wider; cut as vLLM's benchmark cuts them (4 to 1,024 tokens, 2,048 together).
MEAN_PROMPT, MEAN_ANSWER = 161.3, 338.0
SPREAD_PROMPT, SPREAD_ANSWER = 1.2, 0.9
SHORTEST, LONGEST, LONGEST_TOGETHER = 4, 1024, 2048
AT_MOST = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Sums over all steps."""

    num_steps: int
    # Slots of blocks that sequences held.
    num_reserved: int
    # Of those: slots without keys and values; and slots beyond all known tokens of their sequence.
    num_empty: int
    num_beyond: int
    num_preemptions: int

    @property
    def share(self) -> float:
        """Reserved but unused slots / reserved ones."""
        return self.num_empty / self.num_reserved


class _OneToken:
    """An executor that computes nothing: each wanted position gets the same token."""

    lookahead = 0

    def run(self, plan: BatchPlan) -> StepResult:
        """One token for each row that wants one."""
        return StepResult(rows={row.id: RowResult(tokens=(7,) if row.draws else ()) for row in plan.rows})


def lengths(count: int, seed: int) -> list[tuple[int, int]]:
    """Tokens of prompts and answers."""
    random = np.random.default_rng(seed)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < count:
        prompt = random.lognormal(np.log(MEAN_PROMPT) - SPREAD_PROMPT**2 / 2, SPREAD_PROMPT)
        answer = random.lognormal(np.log(MEAN_ANSWER) - SPREAD_ANSWER**2 / 2, SPREAD_ANSWER)
        if min(prompt, answer) >= SHORTEST and prompt <= LONGEST and prompt + answer <= LONGEST_TOGETHER:
            pairs.append((int(prompt), int(answer)))
    return pairs


def measure(pairs: Sequence[tuple[int, int]], *, num_blocks: int = 1024, max_sequences: int = 64) -> Waste:
    """Run all through an engine that has as much to do as it takes; prompts share nothing."""
    limits = Limits(
        max_batch_tokens=512,
        max_sequences=max_sequences,
        max_prompt_tokens_beside_decode=64,
        max_sequence_tokens=num_blocks * BLOCK_SIZE,
    )
    scheduler = Scheduler(
        pool=BlockPool(num_blocks, BLOCK_SIZE),
        limits=limits,
        queue=FcfsQueue(),
        kv=LocalKV(),
        exit_policy=NeverExit(),
        lookahead=0,
        extras=(),
    )
    engine = Engine(scheduler, _OneToken())
    for i, (prompt, answer) in enumerate(pairs):
        engine.add(Request(id=str(i), prompt=(i, *range(prompt - 1)), params=SamplingParams(max_tokens=answer)))
    num_steps = num_reserved = num_empty = num_beyond = num_preemptions = 0
    while engine.has_work:
        engine.step()
        num_steps += 1
        num_preemptions += engine.stats().num_preempted
        for holder in engine.snapshot().holders:
            slots = len(holder.blocks) * BLOCK_SIZE
            num_reserved += slots
            num_empty += slots - min(holder.num_computed, slots)
            num_beyond += max(slots - holder.num_tokens, 0)
    return Waste(
        num_steps=num_steps,
        num_reserved=num_reserved,
        num_empty=num_empty,
        num_beyond=num_beyond,
        num_preemptions=num_preemptions,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    pairs = lengths(args.requests, args.seed)
    waste = measure(pairs)
    prompts, answers = zip(*pairs, strict=True)
    figures = {
        "waste_share": waste.share,
        "waste_share_beyond_known_tokens": waste.num_beyond / waste.num_reserved,
        "num_steps": waste.num_steps,
        "num_preemptions": waste.num_preemptions,
        "mean_prompt_tokens": float(np.mean(prompts)),
        "mean_answer_tokens": float(np.mean(answers)),
    }
    check = Check(name="reserved but unused slots / reserved ones", value=waste.share, at_most=AT_MOST)
    settings = {"requests": args.requests, "seed": args.seed, "block_size": BLOCK_SIZE}
    return report(Result(benchmark="kv_waste", settings=settings, figures=figures, checks=(check,)), args.json)


if __name__ == "__main__":
    sys.exit(main())
