"""Servers under Poisson arrivals: one after the other, the same requests at the same times."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from benchmarks.peers.client import Load, Summary, drive
from benchmarks.peers.environments import Missing
from benchmarks.peers.process import ChildFailed
from benchmarks.peers.servers import Server
from benchmarks.peers.systems import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent to every server."""

    # Texts of about 128 tokens, no two alike; each load takes fresh ones.
    prompts: Sequence[str]
    rates_per_s: tuple[float, ...] = (0.5, 1.0, 2.0)
    duration_s: float = 30.0
    num_new: int = 128

    def loads(self) -> list[Load]:
        """One for each rate."""
        found: list[Load] = []
        used = 0
        for number, rate in enumerate(self.rates_per_s):
            count = max(2, round(rate * self.duration_s))
            prompts = self.prompts[used : used + count]
            found.append(Load(rate_per_s=rate, prompts=prompts, max_tokens=self.num_new, seed=number))
            used += count
        return found

    @property
    def num_prompts(self) -> int:
        """How many all loads take."""
        return sum(max(2, round(rate * self.duration_s)) for rate in self.rates_per_s)


@dataclass(slots=True)
class Served:
    """What was measured of one server."""

    name: str
    missing: str = ""
    by_rate: dict[float, Summary] = field(default_factory=dict)


def compare(servers: Mapping[str, Server], setting: Setting, plan: Plan) -> list[Served]:
    """Measure all; one that fails tells why."""
    return [_serve(name, server, setting, plan) for name, server in servers.items()]


def _serve(name: str, server: Server, setting: Setting, plan: Plan) -> Served:
    one = Served(name=name)
    try:
        with server(setting) as target:
            warm = Load(rate_per_s=50.0, prompts=[f"{i} {plan.prompts[-1]}" for i in range(4)], max_tokens=16, seed=0)
            asyncio.run(drive(target, warm))
            for load in plan.loads():
                one.by_rate[load.rate_per_s] = asyncio.run(drive(target, load))
                print(
                    f"online: {name}, {load.rate_per_s}/s: {one.by_rate[load.rate_per_s]}", file=sys.stderr, flush=True
                )
    # What a peer does wrong is told in its row; the others are measured all the same.
    except (Missing, ChildFailed, RuntimeError, OSError, httpx.HTTPError) as error:
        one.missing = str(error)
    return one


def table(served: Sequence[Served], rates: Sequence[float]) -> list[str]:
    """Rows in Markdown."""
    lines = [
        "| server | requests/s | TTFT p50 / p99, ms | gap p50 / p99, ms | goodput, requests/s | in time | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in served:
        for rate in rates:
            s = one.by_rate.get(rate)
            if s is None:
                lines.append(f"| {one.name} | {rate} | not measured: {one.missing} | | | | |")
                continue
            lines.append(
                f"| {one.name} | {rate} | {1e3 * s.ttft_p50_s:.0f} / {1e3 * s.ttft_p99_s:.0f} "
                f"| {1e3 * s.gap_p50_s:.0f} / {1e3 * s.gap_p99_s:.0f} | {s.goodput_per_s:.2f} "
                f"| {100 * s.good_share:.0f} % | {s.num_failed} |"
            )
    return lines
