"""Measures the edge builder's ways to quantise on one model, one line a method: docs/edge-accuracy.md.

Usage: python -m benchmarks.edge_methods [MODEL] [--windows 60] [--judged 20] [--quick] [--only NAME,...] [--json F]

Each method is the real stage with its recipe, in a process of its own over the same float graphs, compared with these
on text that calibrated nothing. With --store DIR a run goes on where it stopped; --page FILE writes the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.result import Check, Result, report
from benchmarks.serving import demo_model

from octavo_edge.recipe import (
    GPTQ,
    PRESETS,
    Calibration,
    Evaluation,
    Gates,
    Granularity,
    Method,
    MixedPrecision,
    Precision,
    QType,
    Recipe,
    SeqMSE,
    WeightPrecision,
)

ROOT = Path(__file__).resolve().parent.parent
CONTEXT, AR = 512, 128
BLOCK = 64
W8, W4 = PRESETS["w8a16"], PRESETS["w4a16"]
W8_DEFAULT, W4_PRESET = "w8a16", "w4a16"
MOST_SECONDS = 45 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A method by its name, what the table calls it, and its recipe; ``fixed`` has the preset's own windows."""

    name: str
    about: str
    recipe: Recipe
    fixed: bool = False

    def with_windows(self, num_windows: int, num_judged: int, *, quick: bool = False) -> Recipe:
        """The recipe for this run: no gates, which would end it. ``quick`` takes the preset's own windows too."""
        calibration = self.recipe.calibration
        if quick or not self.fixed:
            calibration = replace(calibration, num_windows=num_windows)
        evaluation = Evaluation(num_windows=num_judged)
        return replace(self.recipe, calibration=calibration, evaluation=evaluation, gates=Gates())


def methods() -> list[Asked]:
    """All methods in the table's order."""

    def w8(name: str, about: str, *, precision: Precision = W8.precision, method: Method = Method.MINMAX) -> Asked:
        recipe = replace(W8, precision=precision, calibration=Calibration(method=method))
        return Asked(name=name, about=about, recipe=recipe)

    def w4(name: str, about: str, granularity: Granularity, *steps: SeqMSE | GPTQ | MixedPrecision) -> Asked:
        size = None if granularity is Granularity.PCQ else BLOCK
        blocks = WeightPrecision(qtype=QType.INT4, granularity=granularity, block_size=size)
        return Asked(
            name=name,
            about=about,
            recipe=replace(W4, precision=replace(W4.precision, blocks=blocks), recipe=steps),
        )

    plain = replace(W8.precision, residual=QType.INT16)
    search = SeqMSE(num_windows=8)
    return [
        w8("w8a16-minmax", "W8A16, MinMax, residual in int16 too", precision=plain),
        w8(W8_DEFAULT, "**W8A16, the preset `w8a16`**: residual in float16"),
        w8("w8a16-percentile", "W8A16 with percentile 99.99", method=Method.PERCENTILE),
        w8("w8a16-mse", "W8A16 with MSE", method=Method.MSE),
        w4("w4a16-pcq", "W4A16, MinMax by channel", Granularity.PCQ),
        w4("w4a16-bq", f"W4A16, MinMax by blocks of {BLOCK} (BQ)", Granularity.BQ),
        w4("w4a16-lpbq", f"W4A16, LPBQ of {BLOCK}", Granularity.LPBQ),
        w4("w4a16-seqmse", "W4A16, SeqMSE by channel", Granularity.PCQ, search),
        w4("w4a16-lpbq-seqmse", f"W4A16, LPBQ of {BLOCK} and SeqMSE", Granularity.LPBQ, search),
        w4("w4a16-lpbq-mixed", f"W4A16, LPBQ of {BLOCK}, a tenth in int8", Granularity.LPBQ, MixedPrecision()),
        Asked(name=W4_PRESET, about="**W4A16, the preset `w4a16`**: LPBQ, SeqMSE, GPTQ", recipe=W4, fixed=True),
    ]


def quantise(model: Path, store: Path, recipe: Recipe) -> dict[str, Any]:
    """Adapt and optimise the model (or find that done), quantise it; the last stage's report."""
    from octavo_common.clock import SystemClock
    from octavo_edge.artifacts import source_model
    from octavo_edge.fingerprint import builder_fingerprint
    from octavo_edge.pipeline import StageRun, Surroundings, pipeline
    from octavo_edge.report import report_to_json
    from octavo_edge.stage import Cancellation, Progress
    from octavo_edge.stages.adapt import Adapt
    from octavo_edge.stages.optimise import Optimise
    from octavo_edge.stages.quantise import Quantise
    from octavo_edge.store import ArtifactStore
    from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

    runs: list[StageRun] = []
    last = [""]

    def tell(progress: Progress) -> None:
        if progress.stage != last[0]:
            last[0] = progress.stage
            print(f"  {progress.stage}", file=sys.stderr, flush=True)

    clock = SystemClock()
    with ExitStack() as held:
        around = Surroundings(
            store=ArtifactStore(store, clock),
            target=OnnxRuntimeTarget(),
            clock=clock,
            cancellation=Cancellation(),
            on_progress=tell,
            on_stage=runs.append,
            held=held,
            builder=builder_fingerprint(),
        )
        stages = pipeline(Adapt(context_length=CONTEXT)).then(Optimise(context_length=CONTEXT, ars=(AR,)))
        stages.then(Quantise(recipe=recipe)).run(source_model(model), around)
    return report_to_json(runs[-1].report)


def in_a_process(model: Path, store: Path, method: Asked, args: argparse.Namespace) -> dict[str, Any]:
    """The report of one method, from a process whose memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "report.json"
        windows = ("--windows", str(args.windows), "--judged", str(args.judged))
        place = ("--one", method.name, "--store", str(store), "--json", str(written))
        quick = ("--quick",) if args.quick else ()
        command = [sys.executable, "-m", "benchmarks.edge_methods", str(model), *windows, *place, *quick]
        subprocess.run(command, cwd=ROOT, check=True)
        return json.loads(written.read_text(encoding="utf-8"))


def figures_of(found: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """By method and metric, with the unit in the name."""
    figures: dict[str, float] = {}
    for name, told in found.items():
        metrics = told["outcome"]["metrics"]
        for key in ("sqnr_db", "centred_sqnr_db", "mean_kl_nats", "top1_ratio", "ppl", "ppl_ratio", "size_bytes"):
            figures[f"{name}.{key}"] = float(metrics[key])
        figures[f"{name}.seconds"] = float(told["seconds"])
        figures[f"{name}.peak_rss_bytes"] = float(told["peak_rss_bytes"])
    return figures


def checks_of(figures: Mapping[str, float], names: Sequence[str]) -> tuple[Check, ...]:
    """What is promised, as far as its methods were run."""
    checks: list[Check] = []
    if W8_DEFAULT in names:
        checks += [
            Check(name="W8A16, mean KL in nats", value=figures[f"{W8_DEFAULT}.mean_kl_nats"], at_most=0.01),
            Check(name="W8A16, perplexity to float's", value=figures[f"{W8_DEFAULT}.ppl_ratio"], at_most=1.01),
        ]
    if W4_PRESET in names:
        four = [name for name in names if name.startswith("w4a16")]
        best = min(four, key=lambda name: figures[f"{name}.mean_kl_nats"])
        checks += [
            Check(name=f"best W4A16 ({best}), mean KL in nats", value=figures[f"{best}.mean_kl_nats"], at_most=0.2),
            Check(name=f"best W4A16 ({best}), perplexity to float's", value=figures[f"{best}.ppl_ratio"], at_most=1.15),
        ]
        if W8_DEFAULT in names:
            share = figures[f"{best}.size_bytes"] / figures[f"{W8_DEFAULT}.size_bytes"]
            checks.append(Check(name=f"best W4A16 ({best}), bytes to W8A16's", value=share, at_most=0.65))
        seconds = figures[f"{W4_PRESET}.seconds"]
        checks.append(Check(name="quantising by w4a16, seconds", value=seconds, at_most=MOST_SECONDS))
    return tuple(checks)


def page(result: Result, found: Mapping[str, dict[str, Any]], asked: Sequence[Asked]) -> str:
    """The table in Markdown."""
    machine, settings = result.machine, result.settings
    some = next(iter(found.values()))["outcome"]["metrics"]
    lines = [
        "# What quantising costs",
        "",
        f"Written by `python -m benchmarks.edge_methods` (part of `make verify`): {settings['model']}, context "
        f"{CONTEXT}, graphs for {AR} tokens, on {machine['processor']}, {machine['num_cores']} cores, load "
        f"{machine['load_1m']} at its end. Ranges are from {settings['num_windows']} windows of calibration text (the "
        f"preset `w4a16`: {settings['num_preset_windows']}); all is compared with the float graph, whose "
        f"perplexity is {float(some['float_ppl']):.2f}, on {settings['num_judged']} windows of {AR} tokens of "
        "other text.",
        "Perplexities without a context before them are high; ratios are what counts. Bytes are those of "
        "`weights.data`; seconds and memory are those of the stage, float graph and comparison included.",
        "",
        "| method | SQNR dB | centred dB | mean KL nats | top-1 | perplexity | to float | MB | s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    figures = result.figures
    for method in asked:
        if method.name not in found:
            continue

        def cell(key: str, style: str, scale: float = 1.0, name: str = method.name) -> str:
            return format(figures[f"{name}.{key}"] / scale, style)

        cells = [
            method.about,
            cell("sqnr_db", ".1f"),
            cell("centred_sqnr_db", ".1f"),
            cell("mean_kl_nats", ".4f"),
            cell("top1_ratio", ".3f"),
            cell("ppl", ".2f"),
            f"{(figures[f'{method.name}.ppl_ratio'] - 1) * 100:+.1f} %",
            cell("size_bytes", ".1f", 1e6),
            cell("seconds", ".0f"),
            cell("peak_rss_bytes", ".0f", 1e6),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| promise | found | at most | holds |", "|---|---|---|---|"]
    for check in result.checks:
        held = "yes" if check.holds else "**no**"
        lines.append(f"| {check.name} | {check.value:.4g} | {check.at_most:g} | {held} |")
    return "\n".join([*lines, *_sensitivity(found)]) + "\n"


def _sensitivity(found: Mapping[str, dict[str, Any]]) -> list[str]:
    """What each layer loses alone, of the last method that measured it."""
    tables = [told["outcome"]["details"].get("sensitivity") for told in found.values()]
    rows = next((table for table in reversed(tables) if table), None)
    if rows is None:
        return []
    lines = ["", "## What each layer loses alone", "", "| layer | KL nats | rises to int8 |", "|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['name']} | {float(row['loss']):.4f} | {'yes' if row['raised'] else ''} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file or a directory; default: the demo model")
    parser.add_argument("--windows", type=int, default=60, help="of calibration text")
    parser.add_argument("--judged", type=int, default=20, help="windows of other text that all are judged by")
    parser.add_argument("--quick", action="store_true", help="these windows for the preset w4a16 too, not its own")
    parser.add_argument("--only", default="", help="methods, separated by commas; default: all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help="where results are kept; default: a folder that goes away")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    model = (args.model or demo_model()).resolve()
    every = {method.name: method for method in methods()}
    if args.one:
        told = quantise(model, args.store, every[args.one].with_windows(args.windows, args.judged, quick=args.quick))
        args.json.write_text(json.dumps(told), encoding="utf-8")
        return 0
    asked = [method for name, method in every.items() if not args.only or name in args.only.split(",")]
    found: dict[str, dict[str, Any]] = {}
    result = None
    with ExitStack() as stack:
        store = args.store or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for method in asked:
            print(method.name, file=sys.stderr, flush=True)
            found[method.name] = in_a_process(model, store.resolve(), method, args)
            figures = figures_of(found)
            result = Result(
                benchmark="edge_methods",
                settings={
                    "model": model.name,
                    "num_windows": args.windows,
                    "num_preset_windows": args.windows if args.quick else W4.calibration.num_windows,
                    "num_judged": args.judged,
                },
                figures=figures,
                checks=checks_of(figures, list(found)),
            )
            # After every method, so that a run that is cut short has told something.
            if args.page is not None:
                args.page.write_text(page(result, found, asked), encoding="utf-8")
    assert result is not None
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
