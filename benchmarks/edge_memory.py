"""Measures how much memory the edge builder's stages take, and that it does not grow with the number of layers.

Usage: python -m benchmarks.edge_memory [MODEL] [--layers 12] [--windows 8] [--judged 4] [--recipe NAME] [--json FILE]

The model and its first layers alone go through optimise and quantise, each stage in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.result import Check, Result, report
from benchmarks.serving import demo_model
from safetensors import safe_open
from safetensors.torch import save_file

from octavo_common.clock import SystemClock
from octavo_edge.artifacts import AdaptedModel, OptimisedGraph, carry, source_model
from octavo_edge.memory import PeakMemory
from octavo_edge.models.config import read_config, write_config
from octavo_edge.recipe import PRESETS, Calibration, Evaluation, Recipe
from octavo_edge.stage import Cancellation, StageContext
from octavo_edge.stages.adapt import Adapt
from octavo_edge.stages.optimise import Optimise
from octavo_edge.stages.quantise import Quantise
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

ROOT = Path(__file__).resolve().parent.parent
CONTEXT, ARS = 512, (128, 1)
MOST_GROWTH = 1.2
_WEIGHTS = "weights.safetensors"
STAGES = ("adapt", "optimise", "quantise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One stage: the most resident memory while it ran, and what was resident before."""

    before_bytes: int
    peak_bytes: int
    seconds: float


def first_layers(adapted: Path, out: Path, num_layers: int) -> None:
    """Write the adapted model without the layers from ``num_layers`` on; embedding, last norm and head stay."""
    out.mkdir(parents=True)
    carry(adapted, out)
    write_config(out, replace(read_config(adapted), num_layers=num_layers))
    kept = {}
    with safe_open(adapted / _WEIGHTS, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            number = name.split(".")[1] if name.startswith("layers.") else "-1"
            if int(number) < num_layers:
                kept[name] = file.get_tensor(name)
    save_file(kept, str(out / _WEIGHTS))


def run_stage(stage: str, source: Path, out: Path, recipe: Recipe) -> Peak:
    """Run one stage here."""
    clock = SystemClock()
    scratch = out.with_name(f"{out.name}-scratch")
    for folder in (out, scratch):
        folder.mkdir(parents=True)
    context = StageContext(
        stage=stage,
        out=out,
        scratch=scratch,
        target=OnnxRuntimeTarget(),
        clock=clock,
        cancellation=Cancellation(),
        on_progress=lambda _: None,
    )
    memory = PeakMemory.start()
    before, begun_s = memory.peak_bytes(), clock.monotonic()
    digest = "0" * 64
    match stage:
        case "adapt":
            Adapt(context_length=CONTEXT).run(source_model(source), context)
        case "optimise":
            Optimise(context_length=CONTEXT, ars=ARS).run(AdaptedModel(path=source, digest=digest), context)
        case _:
            Quantise(recipe=recipe).run(OptimisedGraph(path=source, digest=digest), context)
    return Peak(before_bytes=before, peak_bytes=memory.peak_bytes(), seconds=clock.monotonic() - begun_s)


def in_a_process(stage: str, source: Path, out: Path, args: argparse.Namespace) -> Peak:
    """The same in a process of its own."""
    written = out.with_name(f"{out.name}.json")
    windows = ("--recipe", args.recipe, "--windows", str(args.windows), "--judged", str(args.judged))
    place = ("--stage", stage, "--out", str(out), "--json", str(written))
    command = [sys.executable, "-m", "benchmarks.edge_memory", str(source), *windows, *place]
    subprocess.run(command, cwd=ROOT, check=True)
    return Peak(**json.loads(written.read_text(encoding="utf-8")))


def measure(model: Path, folder: Path, args: argparse.Namespace) -> Result:
    """All stages of the whole model, and those after adapt of its first layers."""
    peaks: dict[str, Peak] = {}
    adapted = folder / "adapt"
    peaks["adapt"] = in_a_process("adapt", model, adapted, args)
    num_layers = read_config(adapted).num_layers
    first_layers(adapted, folder / "first", args.layers)
    for count, source in ((args.layers, folder / "first"), (num_layers, adapted)):
        for stage in STAGES[1:]:
            name = f"{stage}.{count}_layers"
            print(name, file=sys.stderr, flush=True)
            peaks[name] = in_a_process(stage, source, folder / name, args)
            source = folder / name
    figures = {f"{name}.{key}": float(value) for name, peak in peaks.items() for key, value in asdict(peak).items()}
    few, many = (figures[f"quantise.{count}_layers.peak_bytes"] for count in (args.layers, num_layers))
    return Result(
        benchmark="edge_memory",
        settings={
            "model": model.name,
            "recipe": args.recipe,
            "num_windows": args.windows,
            "num_judged": args.judged,
            "context_length": CONTEXT,
            "ars": list(ARS),
        },
        figures=figures,
        checks=(
            Check(
                name=f"quantising {num_layers} layers, memory to that of {args.layers}",
                value=many / few,
                at_most=MOST_GROWTH,
            ),
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file or a directory; default: the demo model")
    parser.add_argument("--layers", type=int, default=12, help="that the smaller model keeps")
    parser.add_argument("--windows", type=int, default=8, help="of calibration text")
    parser.add_argument("--judged", type=int, default=4, help="windows of other text")
    parser.add_argument("--recipe", default="w4a16", choices=list(PRESETS))
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.stage:
        recipe = replace(
            PRESETS[args.recipe],
            calibration=Calibration(num_windows=args.windows),
            evaluation=Evaluation(num_windows=args.judged),
        )
        peak = run_stage(args.stage, args.model, args.out, recipe)
        args.json.write_text(json.dumps(asdict(peak)), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return report(measure((args.model or demo_model()).resolve(), Path(folder), args), args.json)


if __name__ == "__main__":
    sys.exit(main())
