"""Compares Octavo with other engines and servers: same checkpoint, cores and requests, in one run.

Usage: python -m benchmarks.peers [MODEL] [--only setup,offline,online] [--rounds 3] [--json FILE] [--page FILE]

`make bench-peers` runs it whole. Each peer lies in an environment of its own under build/peers/, which the first run
makes (llama.cpp is compiled: minutes). A peer that cannot be installed or run is listed with the reason.
Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers import ceilings, offline, online
from benchmarks.peers.environments import ENVIRONMENTS, FOLDER, Missing, set_up
from benchmarks.peers.material import directory_of, measured_costs, real_prompts
from benchmarks.peers.servers import SERVERS
from benchmarks.peers.systems import PEERS, Setting, own
from benchmarks.result import Check, Result, report
from benchmarks.serving import demo_model

from octavo_worker.models.registry import find_model

PARTS = ("setup", "offline", "online")


def offline_part(args: argparse.Namespace, setting: Setting) -> tuple[dict[str, float], list[Check], list[str]]:
    """Figures, promises and the table of engine against engine."""
    costs, limits = measured_costs(setting.gguf), ceilings.measure(setting.threads)
    batches = tuple(map(int, args.batches.split(",")))
    prompts = [ids for ids, _ in real_prompts(setting.gguf, max(batches), args.num_prompt)]
    work = offline.Work(prompts=prompts, batches=batches, num_new=args.num_new, rounds=args.rounds)
    systems = [*(own(mode) for mode in args.modes.split(",")), *PEERS]
    wanted = args.systems.split(",") if args.systems else None
    found = offline.compare([s for s in systems if wanted is None or s.name in wanted], setting, work)
    figures = {"read_gb_per_s": limits.read_gb_per_s, "int8_gops": limits.int8_gops}
    checks: list[Check] = []
    for batch in batches:
        rates = [(one.system, one.best(batch) or 0.0) for one in found]
        figures |= {f"{system.name}_{batch}_tokens_per_s": rate for system, rate in rates if rate}
        ours = max((rate for system, rate in rates if system.is_own), default=0.0)
        theirs = max((rate for system, rate in rates if not system.is_own), default=0.0)
        if ours and theirs:
            checks.append(Check(name=f"{batch} at once, Octavo / best peer", value=ours / theirs, at_least=1.0))
    words = f"Reads {limits.read_gb_per_s:.1f} GB/s (2 GiB buffer), int8 products {limits.int8_gops:.0f} GOPS (oneDNN)."
    return figures, checks, [*offline.table(found, work, costs, limits), "", words]


def online_part(args: argparse.Namespace, setting: Setting) -> tuple[dict[str, float], list[Check], list[str]]:
    """Figures, promises and the table of servers under load."""
    rates = tuple(map(float, args.rates.split(",")))
    plan = online.Plan(prompts=(), rates_per_s=rates, duration_s=args.duration_s, num_new=args.num_new)
    texts = [text for _, text in real_prompts(setting.gguf, plan.num_prompts + 1, args.num_prompt)]
    plan = online.Plan(prompts=texts, rates_per_s=rates, duration_s=args.duration_s, num_new=args.num_new)
    wanted = args.servers.split(",") if args.servers else list(SERVERS)
    served = online.compare({name: SERVERS[name] for name in wanted}, setting, plan)
    figures = {
        f"{one.name}_{rate}_{name}": float(value)
        for one in served
        for rate, summary in one.by_rate.items()
        for name, value in asdict(summary).items()
    }
    checks: list[Check] = []
    for rate in rates:
        gaps = {one.name: one.by_rate[rate].gap_p99_s for one in served if rate in one.by_rate}
        ours = gaps.pop("Octavo's platform", None)
        if ours is not None and gaps:
            ratio = ours / min(gaps.values())
            checks.append(Check(name=f"p99 gap at {rate}/s, Octavo / best peer", value=ratio, at_most=1.0))
    return figures, checks, online.table(served, rates)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file; default: the demo model")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--modes", default="w4a8,w8a8,float32", help="our precisions")
    parser.add_argument("--systems", default="", help="offline: only these, by name")
    parser.add_argument("--servers", default="", help="online: only these, by name")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--num-prompt", type=int, default=128)
    parser.add_argument("--num-new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="0.5,1,2", help="requests a second")
    parser.add_argument("--duration-s", type=float, default=30.0, help="of the arrivals at each rate")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, default=FOLDER / "result.json")
    parser.add_argument("--page", type=Path, default=FOLDER / "tables.md", help="the tables in Markdown")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    parts = args.only.split(",")
    pages: list[str] = []
    if "setup" in parts:
        for name in ENVIRONMENTS:
            try:
                print(f"{name}: {set_up(name).folder}", file=sys.stderr, flush=True)
            except Missing as missing:
                print(f"{name}: {missing}", file=sys.stderr, flush=True)
    gguf = find_model((args.model or demo_model()).resolve())
    setting = Setting(gguf=gguf, directory=directory_of(gguf, FOLDER / "model"), threads=args.threads)
    figures: dict[str, float] = {}
    checks: list[Check] = []
    for name, part in (("offline", offline_part), ("online", online_part)):
        if name in parts:
            more = part(args, setting)
            figures |= more[0]
            checks += more[1]
            pages += [*more[2], ""]
    args.page.write_text("\n".join(pages), encoding="utf-8")
    print("\n".join(pages), file=sys.stderr)
    settings = {"model": gguf.name, "threads": args.threads, "parts": args.only, "rounds": args.rounds}
    result = Result(benchmark="peers", settings=settings, figures=figures, checks=tuple(checks))
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
