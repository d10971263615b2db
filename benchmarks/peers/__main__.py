"""Compares Octavo with other engines and servers: same checkpoint, cores and requests, in one run.

Usage: python -m benchmarks.peers [MODEL] [--quick] [--only setup,offline,online] [--json FILE] [--page FILE]

`make bench-peers` runs it whole. Each peer lies in an environment of its own under build/peers/, which the first run
makes (llama.cpp is compiled: minutes). A peer that cannot be installed or run is listed with the reason.
Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers import ceilings, offline, online
from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.costs import Costs
from benchmarks.peers.environments import ENVIRONMENTS, FOLDER, Missing, set_up
from benchmarks.peers.material import directory_of, measured_costs, real_prompts
from benchmarks.peers.page import Part, write_page
from benchmarks.peers.servers import OWN, SERVERS
from benchmarks.peers.systems import PEERS, Setting, own
from benchmarks.result import Check, Result, report
from benchmarks.serving import demo_model

from octavo_worker.models.precision import AUTO
from octavo_worker.models.registry import find_model

PARTS = ("setup", "offline", "online")
# Enough to see that everything runs; no figure of it means anything.
QUICK = {"modes": AUTO, "batches": "1,4", "num_new": 16, "rounds": 1, "rates": "1,2,4", "duration_s": 4.0}


def offline_part(args: argparse.Namespace, setting: Setting, costs: Costs, limits: Ceilings) -> Part:
    """Figures, promises and the table of engine against engine."""
    batches = tuple(map(int, args.batches.split(",")))
    prompts = [ids for ids, _ in real_prompts(setting.gguf, max(batches), args.num_prompt)]
    work = offline.Work(prompts=prompts, batches=batches, num_new=args.num_new, rounds=args.rounds)
    systems = [*(own(mode) for mode in args.modes.split(",")), *PEERS]
    wanted = args.systems.split(",") if args.systems else None
    load = os.getloadavg()[0]
    found = offline.compare([s for s in systems if wanted is None or s.name in wanted], setting, work)
    figures: dict[str, float] = {"offline_load_1m": load}
    checks: list[Check] = []
    for batch in batches:
        rates = {one.system.name: rate for one in found if (rate := one.best(batch))}
        figures |= {f"{name}_{batch}_tokens_per_s": rate for name, rate in rates.items()}
        # Of what a user gets who chooses nothing.
        ours = rates.get(own(AUTO).name)
        theirs = [rates[one.system.name] for one in found if one.system.name in rates and not one.system.is_own]
        if ours and theirs:
            checks.append(Check(name=f"{batch} at once, Octavo / best peer", value=ours / max(theirs), at_least=1.0))
    lines = [*offline.table(found, work, costs, limits), "", f"Load {load:.1f} before."]
    return Part(figures=figures, checks=checks, lines=lines)


def online_part(args: argparse.Namespace, setting: Setting, costs: Costs, limits: Ceilings) -> Part:
    """Figures, promises and the table of servers under load."""
    rates = tuple(map(float, args.rates.split(",")))
    count = online.NUM_WARM + sum(online.num_requests(rate, args.duration_s) for rate in rates)
    plan = online.Plan(
        prompts=[text for _, text in real_prompts(setting.gguf, count, args.num_prompt)],
        num_prompt=args.num_prompt,
        rates_per_s=rates,
        duration_s=args.duration_s,
        num_new=args.num_new,
    )
    wanted = args.servers.split(",") if args.servers else list(SERVERS)
    served = online.compare({name: SERVERS[name] for name in wanted}, setting, plan)
    figures = {
        f"{one.name}_{rate:g}_per_s_{name}": float(value)
        for one in served
        for rate, summary in one.by_rate.items()
        for name, value in asdict(summary).items()
    }
    checks: list[Check] = []
    for rate in rates:
        gaps = {one.name: one.by_rate[rate].gap_p99_s for one in served if rate in one.by_rate}
        ours = gaps.pop(OWN, None)
        if ours is not None and gaps:
            ratio = ours / min(gaps.values())
            checks.append(Check(name=f"p99 gap at {rate:g}/s, Octavo / best peer", value=ratio, at_most=1.0))
    return Part(figures=figures, checks=checks, lines=online.table(served, plan, costs, limits))


def set_up_all() -> dict[str, str]:
    """Every environment; those that are missing, with the reason."""
    missing: dict[str, str] = {}
    for name in ENVIRONMENTS:
        try:
            print(f"{name}: {set_up(name).folder}", file=sys.stderr, flush=True)
        except Missing as reason:
            missing[name] = str(reason)
            print(f"{name}: {reason}", file=sys.stderr, flush=True)
    return missing


def arguments() -> argparse.Namespace:
    """What was asked for; --quick counts for what was not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file; default: the demo model")
    parser.add_argument("--quick", action="store_true", help="a smoke test: everything once, short")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument(
        "--modes", default=f"{AUTO},w4a8,bfloat16", help="our precisions; what is promised is so of auto"
    )
    parser.add_argument("--systems", default="", help="offline: only these, by name")
    parser.add_argument("--servers", default="", help="online: only these, by name")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--num-prompt", type=int, default=128)
    parser.add_argument("--num-new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="0.5,1,2", help="requests a second")
    parser.add_argument("--duration-s", type=float, default=60.0, help="of the arrivals at each rate")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, default=FOLDER / "result.json")
    parser.add_argument("--page", type=Path, default=FOLDER / "peers.md", help="the tables in Markdown")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    # Blocks are left, so servers end, also when the whole run is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = args.only.split(",")
    missing = set_up_all() if "setup" in wanted else {}
    parts: dict[str, Part] = {}
    settings: dict[str, object] = {"threads": args.threads, "parts": args.only, "rounds": args.rounds, **missing}
    figures: dict[str, float] = {}
    if {"offline", "online"} & set(wanted):
        gguf = find_model((args.model or demo_model()).resolve())
        setting = Setting(
            gguf=gguf, directory=directory_of(gguf, FOLDER / "model"), threads=args.threads, missing=missing
        )
        settings |= {"model": gguf.name, "num_prompt": args.num_prompt, "num_new": args.num_new}
        settings |= {"duration_s": args.duration_s, "quick": args.quick}
        limits, costs = ceilings.measure(setting.threads), measured_costs(gguf)
        figures |= {"read_gb_per_s": limits.read_gb_per_s, "int8_gops": limits.int8_gops}
        for name, measure in (("offline", offline_part), ("online", online_part)):
            if name in wanted:
                parts[name] = measure(args, setting, costs, limits)
                # As far as it got: a run takes long.
                write_page(args.page, parts, limits, settings)
    for part in parts.values():
        figures |= part.figures
    checks = tuple(check for part in parts.values() for check in part.checks)
    result = Result(benchmark="peers", settings=settings, figures=figures, checks=checks)
    code = report(result, args.json)
    if parts:
        print(args.page.read_text(encoding="utf-8"), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
