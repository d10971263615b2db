"""Engine against engine: some prompts at once, greedily, each engine in a process of its own, in turns."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.costs import Costs, int8_part, read_part
from benchmarks.peers.environments import Missing
from benchmarks.peers.process import Child, ChildFailed
from benchmarks.peers.systems import Setting, System, running


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is asked of every system."""

    # Longest list of prompts; a batch of n takes the first n.
    prompts: Sequence[Sequence[int]]
    batches: tuple[int, ...] = (1, 8, 32)
    num_new: int = 128
    rounds: int = 3


@dataclass(slots=True)
class Found:
    """What was measured of one system."""

    system: System
    version: str = ""
    # As it holds the model; None takes the GGUF file's.
    bytes_per_weight: float | None = None
    # Why it was not measured, or not to the end.
    missing: str = ""
    # Batch size -> tokens/s of each round, prompt phase included.
    rates: dict[int, list[float]] = field(default_factory=dict)
    first_tokens: list[int] = field(default_factory=list)

    def best(self, batch: int) -> float | None:
        """The best round."""
        return max(self.rates[batch]) if self.rates.get(batch) else None


def compare(systems: Sequence[System], setting: Setting, work: Work) -> list[Found]:
    """Measure all; a system that fails tells why and is left out of further rounds."""
    found = [Found(system=system) for system in systems]
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for one in found:
            try:
                here = stack.enter_context(running(one.system, setting))
                children[one.system.name] = here.child
                one.version, one.bytes_per_weight = here.version, here.bytes_per_weight
                # Compiles, allocates, reads the weights.
                children[one.system.name]("generate", prompts=[list(p) for p in work.prompts[-2:]], max_tokens=4)
            except (Missing, ChildFailed) as error:
                one.missing = str(error)
        for turn in range(work.rounds):
            for batch in work.batches:
                # Each round begins with another system.
                for one in found[turn % len(found) :] + found[: turn % len(found)]:
                    if not one.missing:
                        _measure(one, children[one.system.name], work, batch)
    return found


def _measure(one: Found, child: Child, work: Work, batch: int) -> None:
    prompts = [list(prompt) for prompt in work.prompts[:batch]]
    try:
        answer = child("generate", prompts=prompts, max_tokens=work.num_new)
    except ChildFailed as error:
        one.missing = str(error)
        return
    lengths = {len(tokens) for tokens in answer["tokens"]}
    if lengths != {work.num_new}:
        one.missing = f"answered with {sorted(lengths)} tokens instead of {work.num_new}"
        return
    one.first_tokens = one.first_tokens or answer["tokens"][0][:8]
    one.rates.setdefault(batch, []).append(batch * work.num_new / answer["seconds"])
    rate, cpu_s = one.rates[batch][-1], answer["cpu_s"]
    words = f"{rate:.1f} tokens/s, {batch * work.num_new / cpu_s:.1f} tokens a second of CPU time"
    print(f"offline: {one.system.name}, {batch}: {words}", file=sys.stderr, flush=True)


def fractions(one: Found, batch: int, work: Work, costs: Costs, ceilings: Ceilings) -> tuple[float, float]:
    """Of memory bandwidth (weights once a decode step) and of int8 throughput, in the best round."""
    rate = one.best(batch)
    assert rate is not None
    read = read_part(costs.weight_bytes(one.bytes_per_weight), batch / rate, ceilings)
    operations = batch * costs.operations(len(work.prompts[0]), work.num_new)
    return read, int8_part(operations, batch * work.num_new / rate, ceilings)


def table(found: Sequence[Found], work: Work, costs: Costs, ceilings: Ceilings) -> list[str]:
    """Rows in Markdown: best / median tokens/s, (part of bandwidth, part of int8 throughput)."""
    heads = "".join(f" {n} request{'s' if n > 1 else ''} |" for n in work.batches)
    lines = [f"| system |{heads} version |", "|---|" + "---|" * (len(work.batches) + 1)]
    for one in found:
        cells = []
        for batch in work.batches:
            rates = one.rates.get(batch)
            if not rates:
                cells.append("-")
                continue
            read, operations = fractions(one, batch, work, costs, ceilings)
            speeds = f"{max(rates):.0f} / {statistics.median(rates):.0f}"
            cells.append(f"{speeds} ({100 * read:.0f} % BW, {100 * operations:.0f} % int8)")
        words = one.version + (f" not measured: {one.missing}" if one.missing else "")
        lines.append(f"| {one.system.name} | {' | '.join(cells)} | {words.strip()} |")
    return lines
