"""Servers under Poisson arrivals: one after the other, the same requests at the same times."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.client import Load, Summary, drive
from benchmarks.peers.costs import Costs, int8_part, read_part
from benchmarks.peers.environments import Missing
from benchmarks.peers.process import ChildFailed
from benchmarks.peers.servers import Server
from benchmarks.peers.systems import Setting

# Of the requests before those that count: a burst of as many as may be under way, so that nothing is compiled,
# allocated or read for the first time later.
NUM_WARM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent to every server."""

    # Texts of as many tokens, no two alike; each load takes fresh ones, the first ones are for warming up.
    prompts: Sequence[str]
    num_prompt: int
    rates_per_s: tuple[float, ...]
    duration_s: float
    num_new: int

    def loads(self) -> list[Load]:
        """One for each rate."""
        found: list[Load] = []
        used = NUM_WARM
        for number, rate in enumerate(self.rates_per_s):
            count = num_requests(rate, self.duration_s)
            prompts = self.prompts[used : used + count]
            assert len(prompts) == count, "there are too few prompts"
            found.append(Load(rate_per_s=rate, prompts=prompts, max_tokens=self.num_new, seed=number))
            used += count
        return found

    def warm_up(self) -> Load:
        """What comes before: as long as the others, nearly all at once."""
        return Load(rate_per_s=20.0, prompts=self.prompts[:NUM_WARM], max_tokens=self.num_new, seed=99)


def num_requests(rate_per_s: float, duration_s: float) -> int:
    """How many come at a rate; a time of arrivals is as long as it takes them to come."""
    return max(2, round(rate_per_s * duration_s))


@dataclass(slots=True)
class Served:
    """What was measured of one server."""

    name: str
    # Version and flags.
    about: str = ""
    bytes_per_weight: float | None = None
    # Of the machine, in the minute before.
    load_1m: float = 0.0
    missing: str = ""
    by_rate: dict[float, Summary] = field(default_factory=dict)


def compare(servers: Mapping[str, Server], setting: Setting, plan: Plan) -> list[Served]:
    """Measure all; one that fails tells why."""
    return [_serve(name, server, setting, plan) for name, server in servers.items()]


def _serve(name: str, server: Server, setting: Setting, plan: Plan) -> Served:
    one = Served(name=name, load_1m=os.getloadavg()[0])
    try:
        with server(setting) as target:
            one.about, one.bytes_per_weight = target.about, target.bytes_per_weight
            asyncio.run(drive(target, plan.warm_up()))
            for load in plan.loads():
                found = one.by_rate[load.rate_per_s] = asyncio.run(drive(target, load))
                print(f"online: {name}, {load.rate_per_s}/s: {found}", file=sys.stderr, flush=True)
    # What a peer does wrong is told in its row; the others are measured all the same.
    except (Missing, ChildFailed, RuntimeError, OSError, httpx.HTTPError) as error:
        one.missing = str(error) or type(error).__name__
        print(f"online: {name}: {one.missing}", file=sys.stderr, flush=True)
    return one


def table(served: Sequence[Served], plan: Plan, costs: Costs, ceilings: Ceilings) -> list[str]:
    """Rows in Markdown, and below them what each server is."""
    lines = [
        "| server | requests/s | TTFT p50 / p99, ms | gap p50 / p99, ms | tokens/s | goodput, requests/s | in time "
        "| failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in served:
        for rate in plan.rates_per_s:
            summary = one.by_rate.get(rate)
            if summary is None:
                lines.append(f"| {one.name} | {rate:g} | not measured: {one.missing} | | | | | |")
            else:
                lines.append(f"| {one.name} | {rate:g} | {' | '.join(_cells(one, summary, plan, costs, ceilings))} |")
    lines.append("")
    lines += [f"- {one.name}: {one.about} (load {one.load_1m:.1f} before)" for one in served if one.about]
    return lines


def _cells(one: Served, found: Summary, plan: Plan, costs: Costs, ceilings: Ceilings) -> list[str]:
    prompt = int8_part(costs.operations(plan.num_prompt, 1), found.ttft_p50_s, ceilings)
    # Every step reads the weights once.
    step = read_part(costs.weight_bytes(one.bytes_per_weight), found.gap_p50_s, ceilings)
    a_token = costs.operations(plan.num_prompt, plan.num_new) / plan.num_new
    computed = int8_part(a_token * found.tokens_per_s, 1.0, ceilings)
    return [
        f"{1e3 * found.ttft_p50_s:.0f} / {1e3 * found.ttft_p99_s:.0f} ({100 * prompt:.0f} % int8)",
        f"{1e3 * found.gap_p50_s:.1f} / {1e3 * found.gap_p99_s:.0f} ({100 * step:.0f} % BW)",
        f"{found.tokens_per_s:.0f} ({100 * computed:.0f} % int8)",
        f"{found.goodput_per_s:.2f}",
        f"{100 * found.good_share:.0f} %",
        str(found.num_failed),
    ]
