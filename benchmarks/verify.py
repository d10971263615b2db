"""Runs everything that takes long, one after the other, and writes down what came out: docs/verify.md.

Usage: python -m benchmarks.verify [--only tests,slow,engine,sampling,serving ...] [--folder DIR] [--page FILE]

All of it takes many hours. With --only the page gets those steps anew and keeps what it had of the others, each with
its own day, commit and machine; they are kept in a .json beside the page. The exit code is 0 when every step passed.
Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.result import commit, describe_machine
from benchmarks.serving import demo_model

ROOT = Path(__file__).resolve().parent.parent
# As `make test` does.
BY_TWO = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
PURE = ("unit/engine", "unit/jobs", "unit/scheduler", "contract")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to run."""

    name: str
    # What it shows.
    about: str
    argv: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out of a step, when and where."""

    step: str
    day: str
    commit: str
    machine: dict[str, Any]
    passed: bool
    minutes: float
    # What does not hold; else the last line that says something, of what it printed.
    words: str
    # Of a benchmark: its figures and promises. Single rounds stay in the folder.
    result: dict[str, Any] | None


def steps(model: Path, folder: Path) -> list[Step]:
    """All steps in their order: cheap ones first, and what others need before them."""
    tests = ("-m", "pytest", "-q", "-m")
    bench = [
        Step(
            name=name,
            about=about,
            argv=("-m", f"benchmarks.{name}", str(model), "--json", str(folder / f"{name}.json")),
            timeout_s=3600,
        )
        for name, about in (
            ("engine", "the engine against transformers, in one process"),
            ("engine_styles", "what styles, swap and shared pages are worth, over one loaded model"),
            ("sampling", "what choosing tokens takes of a decode step, by way of choosing"),
            ("serving", "the whole platform against the engine; what it takes when idle"),
        )
    ]
    compared = [
        Step(
            name="kv_waste",
            about="reserved slots of the KV pool that hold nothing, with ShareGPT's lengths",
            argv=("-m", "benchmarks.kv_waste", "--json", str(folder / "kv_waste.json")),
            timeout_s=600,
        ),
        # After the peers, whose environments it needs.
        Step(
            name="quality",
            about="the precision modes and llama.cpp's against float32 on real text: docs/quality.md",
            argv=(
                *("-m", "benchmarks.quality", str(model), "--json", str(folder / "quality.json")),
                *("--page", "docs/quality.md"),
            ),
            timeout_s=3600,
        ),
        Step(
            name="aimet",
            about="AIMET as the referee of the edge builder's quantiser, in its own environment: docs/aimet.md",
            argv=("-m", "benchmarks.aimet", str(model), "--json", str(folder / "aimet.json")),
            timeout_s=2 * 3600,
        ),
    ]
    edge = [
        Step(
            name="edge_methods",
            about="the edge builder's ways to quantise against the float graph on real text: docs/edge-accuracy.md",
            argv=(
                *("-m", "benchmarks.edge_methods", str(model), "--json", str(folder / "edge_methods.json")),
                *("--page", "docs/edge-accuracy.md"),
            ),
            timeout_s=4 * 3600,
        ),
        Step(
            name="edge_memory",
            about="what the edge builder's stages take of memory, for the whole model and its first 12 layers",
            argv=("-m", "benchmarks.edge_memory", str(model), "--json", str(folder / "edge_memory.json")),
            timeout_s=2 * 3600,
        ),
        Step(
            name="edge_htp",
            about="binaries for Qualcomm's HTP, and its simulator against the golden run: docs/edge-htp.md",
            argv=(
                *("-m", "benchmarks.edge_htp", str(model), "--recipes", "w8a16,w4a16"),
                *("--json", str(folder / "edge_htp.json"), "--page", "docs/edge-htp.md"),
            ),
            timeout_s=4 * 3600,
        ),
    ]
    soak = ("--rounds", "20", "--leavers", "1000", "--json", str(folder / "soak.json"), "--summary", "docs/soak.md")
    return [
        Step(
            name="coverage",
            about="what the tests of the pure parts run through: at least 95 %",
            argv=("-m", "pytest", "-q", *(f"tests/{part}" for part in PURE), "--cov"),
            timeout_s=1800,
        ),
        Step(
            name="tests",
            about="all tests but containers, GPU and the slow ones",
            argv=(*tests, "not docker and not gpu and not slow", *BY_TWO),
            timeout_s=3600,
        ),
        # Before the slow tests: those of GGUF files run in the llama.cpp that this installs.
        Step(
            name="peers",
            about="vLLM, OpenVINO GenAI and llama.cpp, each in its own environment, on the same checkpoint and cores",
            argv=("-m", "benchmarks.peers", str(model), "--json", str(folder / "peers.json")),
            timeout_s=2 * 3600,
        ),
        Step(
            name="edge_executorch",
            about="the edge builder's ExecuTorch programs, run by the library in its own environment",
            argv=("-m", "benchmarks.edge_executorch"),
            timeout_s=2 * 3600,
        ),
        Step(name="slow", about="the slow tests", argv=(*tests, "slow and not docker and not gpu"), timeout_s=7200),
        *bench,
        *compared,
        *edge,
        Step(
            name="soak",
            about="every fault 20 times, 1,000 clients that leave: docs/soak.md",
            argv=("-m", "benchmarks.soak", "--model", str(model), *soak),
            timeout_s=6 * 3600,
        ),
    ]


def run(step: Step, folder: Path) -> Outcome:
    """Run a step; its words go to a log beside its result."""
    written = folder / f"{step.name}.json"
    written.unlink(missing_ok=True)
    at, machine = commit(), describe_machine()
    log = folder / f"{step.name}.log"
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                [sys.executable, *step.argv],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=step.timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
            output.write(f"\nnot done after {step.timeout_s:.0f} s\n")
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    result = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    return Outcome(
        step=step.name,
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=at,
        machine=dict(machine),
        passed=code == 0,
        minutes=(time.monotonic() - started) / 60,
        words="; ".join(broken(result)) or (lines[-1] if lines else ""),
        result=result if "figures" in result else None,
    )


def broken(result: Mapping[str, Any]) -> list[str]:
    """What a benchmark has found not to hold."""
    checks = [f"{check['name']}: {check['value']:.2f}" for check in result.get("checks", ()) if not check["holds"]]
    return [*checks, *result.get("troubles", ())]


def page(steps: Sequence[Step], known: Mapping[str, Outcome]) -> str:
    """The page in Markdown: all steps in their order, also those that never ran."""
    lines = [
        "# What was verified",
        "",
        "Written by `make verify`, which takes many hours; a step may have been run alone. Loads are those before it.",
        "",
        "| step | what | result | minutes | day | commit | processor | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for step in steps:
        outcome = known.get(step.name)
        if outcome is None:
            lines.append(f"| {step.name} | {step.about} | not run | | | | | |")
            continue
        result = "passed" if outcome.passed else f"**failed**: {_cell(outcome.words)}"
        machine = outcome.machine
        lines.append(
            f"| {step.name} | {step.about} | {result} | {outcome.minutes:.1f} | {outcome.day} | {outcome.commit} "
            f"| {machine['processor']}, {machine['num_cores']} cores | {machine['load_1m']} |"
        )
    for outcome in (known[step.name] for step in steps if step.name in known):
        if outcome.result is not None:
            lines += ["", *_benchmark(outcome.result)]
        elif outcome.step in ("tests", "slow"):
            lines += ["", f"{outcome.step}: `{_cell(outcome.words)}`"]
    return "\n".join(lines) + "\n"


def read_known(file: Path) -> dict[str, Outcome]:
    """What earlier runs brought, by step."""
    if not file.exists():
        return {}
    return {name: Outcome(**values) for name, values in json.loads(file.read_text(encoding="utf-8")).items()}


def _benchmark(result: dict[str, Any]) -> Iterable[str]:
    yield f"## {result['benchmark']}"
    yield ""
    yield f"Load at its end: {result['machine']['load_1m']}."
    yield ""
    yield "| promise | found | asked for | holds |"
    yield "|---|---|---|---|"
    for check in result["checks"]:
        asked = f">= {check['at_least']}" if check["at_least"] is not None else f"<= {check['at_most']}"
        yield f"| {check['name']} | {check['value']:.2f} | {asked} | {'yes' if check['holds'] else '**no**'} |"
    yield ""
    yield "| figure | value |"
    yield "|---|---|"
    for name, value in result["figures"].items():
        yield f"| {name} | {value:.4g} |"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="steps, separated by commas; default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "verify", help="for logs and results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "verify.md")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    every, kept = steps(demo_model(), folder), args.page.with_suffix(".json")
    only = set(filter(None, args.only.split(",")))
    if unknown := sorted(only - {step.name for step in every}):
        parser.error(f"there is no step {unknown[0]}; steps are: {', '.join(step.name for step in every)}")
    known, passed = read_known(kept), True
    for step in every:
        if only and step.name not in only:
            continue
        print(f"{step.name}: {step.about}", flush=True)
        outcome = known[step.name] = run(step, folder)
        passed &= outcome.passed
        print(f"  {'passed' if outcome.passed else 'failed'}: {outcome.words}", flush=True)
        # After every step, so that a run that is cut short has told something.
        kept.write_text(
            json.dumps({name: asdict(one) for name, one in known.items()}, indent=1) + "\n", encoding="utf-8"
        )
        args.page.write_text(page(every, known), encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
