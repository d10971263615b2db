"""The long version of tests/e2e/chaos: every fault many times in a row, and a thousand clients that go away.

`python -m benchmarks.soak --rounds 20 --leavers 1000 --json soak.json --summary docs/soak.md`; exit code 0 when
nothing was lost and nothing leaked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.result import describe_machine

from octavo_common.models.catalog import DEFAULT_MODEL
from octavo_common.models.fetch import fetch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e" / "chaos"))

# After the path: the harness lies beside the tests that use its cut.
from chaos_cluster import Cluster  # noqa: E402
from chaos_faults import Faults  # noqa: E402
from chaos_leaks import ENVIRON, STAGES, Leavers, kept_holdings, usual_holdings  # noqa: E402
from chaos_load import asks  # noqa: E402
from chaos_rounds import DEADLY_REQUEST, RoundResult, Rounds  # noqa: E402

NUM_WARM = 8
# What the design promises.
MAX_PAUSE_S, LEASE_MARGIN_S, MAX_FREED_S = 2.0, 3.0, 0.5


def soak_faults(model: Path, *, rounds: int, tokens: int, faults: Sequence[str]) -> list[RoundResult]:
    """All faults in turn, so many rounds, on one platform that is never restarted as a whole."""
    results: list[RoundResult] = []
    with Cluster(model=model) as cluster:
        runs = Rounds(cluster, asks(max_tokens=tokens), model=model)
        for number in range(rounds):
            for fault in faults:
                try:
                    result = runs.run(fault)
                except (Exception, ExceptionGroup) as error:
                    result = RoundResult(fault=fault, troubles=[repr(error)])
                    cluster.wait_ready()
                results.append(result)
                told = "; ".join(result.troubles) or "ok"
                print(f"{number + 1}/{rounds} {fault}: {told} ({result.wall_s:.1f} s)", file=sys.stderr, flush=True)
    return results


def soak_leavers(model: Path, *, count: int) -> dict[str, Any]:
    """A client leaves at each stage, `count` of them in all."""
    with Cluster(model=model, workers=1, gateways=1, schedulers=1, environ=ENVIRON) as cluster:
        watched = [cluster.processes(role)[0] for role in ("worker", "gateway")]
        leavers = Leavers(cluster)
        for stage in STAGES:
            asyncio.run(leavers.run(stage, NUM_WARM))
        cluster.settle()
        before = [usual_holdings(process, cluster.database_port) for process in watched]
        departures = [asyncio.run(leavers.run(stage, -(-count // len(STAGES)))) for stage in STAGES]
        cluster.settle()
        after = [
            kept_holdings(process, cluster.database_port, usual) for process, usual in zip(watched, before, strict=True)
        ]
        (row,) = cluster.query("select count(*) as num from jobs where ended_at is null")
    troubles = [trouble for one in departures for trouble in one.troubles]
    if any(new.kept_from(old) for old, new in zip(before, after, strict=True)):
        troubles.append(f"the worker and the gateway hold {after}, and held {before}")
    if row["num"]:
        troubles.append(f"{row['num']} jobs have not ended")
    stages = {d.stage: {"num": len(d.freed_s), "p99_s": d.p99_s, "max_s": max(d.freed_s)} for d in departures}
    late = [f"{stage}: p99 of {told['p99_s']:.3f} s" for stage, told in stages.items() if told["p99_s"] > MAX_FREED_S]
    return {"stages": stages, "troubles": troubles, "late": late, "held": [str(one) for one in after]}


def summarise(results: Sequence[RoundResult], *, lease_s: float) -> tuple[list[dict[str, Any]], list[str]]:
    """One row a fault, and what does not hold."""
    rows: list[dict[str, Any]] = []
    troubles = [f"{result.fault}: {trouble}" for result in results for trouble in result.troubles]
    for fault in dict.fromkeys(result.fault for result in results):
        mine = [result for result in results if result.fault == fault]
        pauses = [pause for result in mine for pause in result.pauses_s]
        moved = [delay for result in mine for delay in result.moved_s]
        restarts = [restart for result in mine for restart in result.restarts_s]
        rows.append(
            {
                "fault": fault,
                "rounds": len(mine),
                "jobs": sum(result.num_jobs for result in mine),
                "good_rounds": sum(not result.troubles for result in mine),
                "ties": sum(result.num_ties for result in mine),
                "moved_max_s": max(moved, default=None),
                "pause_p50_s": statistics.median(pauses) if pauses else None,
                "pause_max_s": max(pauses, default=None),
                "restart_max_s": max(restarts, default=None),
            }
        )
        if fault == "worker_killed" and pauses and max(pauses) > MAX_PAUSE_S:
            troubles.append(f"{fault}: a stream paused for {max(pauses):.2f} s")
        if fault == "worker_killed" and restarts and max(restarts) > lease_s + LEASE_MARGIN_S:
            troubles.append(f"{fault}: a job without a stream waited for {max(restarts):.2f} s")
    return rows, troubles


def markdown(report: dict[str, Any]) -> str:
    """The report as a page for docs/."""
    machine = report["machine"]
    lines = [
        "# Soak: what was lost, and what leaked",
        "",
        f"`python -m benchmarks.soak --rounds {report['rounds']} --leavers {report['leavers']}` on "
        f"{machine['num_cores']} cores ({machine['processor']}), {report['wall_s']:.0f} s in all; lease "
        f"{report['lease_s']} s. Two workers, two gateways, two schedulers; 20 streams and 4 jobs without a stream.",
        "",
        "| fault | rounds | good | jobs | ties | moved max (s) | pause p50 (s) | pause max (s) | restart max (s) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["faults"]:
        figures = (row[name] for name in ("moved_max_s", "pause_p50_s", "pause_max_s", "restart_max_s"))
        told = " | ".join("" if figure is None else f"{figure:.2f}" for figure in figures)
        counts = " | ".join(str(row[name]) for name in ("rounds", "good_rounds", "jobs", "ties"))
        lines.append(f"| {row['fault']} | {counts} | {told} |")
    lines += ["", "| clients left while | clients | freed p99 (s) | freed max (s) |", "| --- | --- | --- | --- |"]
    for stage, told in report["departures"].get("stages", {}).items():
        lines.append(f"| {stage} | {told['num']} | {told['p99_s']:.3f} | {told['max_s']:.3f} |")
    lines += ["", *(f"- does not hold: {trouble}" for trouble in report["troubles"])]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--leavers", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--faults", nargs="*", default=[*Faults.NAMES, DEADLY_REQUEST])
    parser.add_argument("--model", type=Path, help="a model's file or folder; default: the demo model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--summary", type=Path)
    args = parser.parse_args()
    began_s = time.monotonic()
    model = args.model or fetch(DEFAULT_MODEL, data_dir=ROOT / ".octavo").path
    results: list[RoundResult] = []
    if args.rounds:
        results = soak_faults(model, rounds=args.rounds, tokens=args.tokens, faults=args.faults)
    lease_s = Cluster.DEFAULT_LEASE_S
    rows, troubles = summarise(results, lease_s=lease_s)
    departures = soak_leavers(model, count=args.leavers) if args.leavers else {}
    troubles += departures.get("troubles", []) + departures.get("late", [])
    report = {
        "benchmark": "soak",
        "rounds": args.rounds,
        "leavers": args.leavers,
        "lease_s": lease_s,
        "wall_s": time.monotonic() - began_s,
        "machine": describe_machine(),
        "faults": rows,
        "departures": departures,
        "troubles": troubles,
        "results": [result.to_json() for result in results],
    }
    text = json.dumps(report, indent=2)
    if args.json is not None:
        args.json.write_text(text + "\n", encoding="utf-8")
    if args.summary is not None:
        args.summary.write_text(markdown(report), encoding="utf-8")
    print(markdown(report))
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
