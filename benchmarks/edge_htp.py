"""The demo model for Qualcomm's HTP: what its binaries take, and what the simulator computes: docs/edge-htp.md.

Usage: python -m benchmarks.edge_htp [MODEL] [--recipes w8a16,w4a16] [--folder DIR] [--json FILE] [--page FILE]
       python -m benchmarks.edge_htp --exports w8a16=DIR,w4a16=DIR ...
       python -m benchmarks.edge_htp --recipes w4a16 --kept FILE ...

Each recipe is built for onnxruntime and qnn-htp by the command line, then the largest graphs are compiled once more by
themselves, and the parts are run one after the other on the simulator: a window of the largest graph with nothing
before it, and one token behind that window. With --exports the build is left out: DIR is what the export stage made.
With --kept, results of other recipes (what --json wrote) are on the page too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from benchmarks.result import Check, Result, report
from benchmarks.serving import demo_model

from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import read_blob
from octavo_edge.graph.manifest import ExportManifest, read_manifest
from octavo_edge.graph.metrics import centred_sqnr_db, mean_kl, sqnr_db, top1_agreement
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.parts.vectors import read_vectors
from octavo_edge.target import CompileOptions
from octavo_edge.targets.qnn_htp.lowering import lower
from octavo_edge.targets.qnn_htp.options import read_options
from octavo_edge.targets.qnn_htp.process import run_child
from octavo_edge.targets.qnn_htp.simulate import simulate
from octavo_edge.targets.qnn_htp.target import QnnHtpTarget

ROOT = Path(__file__).resolve().parent.parent
CONTEXT, ARS = 512, (128, 1)
LEAST_DB, LEAST_TOP1 = 24.0, 0.92
MOST_BUILD_S, MOST_BYTES = 20 * 60, 8 * 2**30
PROVIDER = read_options(CompileOptions()).provider()
TARGETS = ("onnxruntime", "qnn-htp")
Arrays = dict[str, Any]


def build(model: Path, recipe: str, folder: Path) -> tuple[Path, dict[str, float]]:
    """Build by the command line; the folder of the exported model in the store, and figures of the report."""
    out, store = folder / recipe, folder / "store"
    argv = ["build", str(model), "--target", ",".join(TARGETS), "--recipe", recipe, "--out", str(out)]
    lengths = ["--context-length", str(CONTEXT), "--ar", ",".join(map(str, ARS)), "--store", str(store)]
    subprocess.run([sys.executable, "-m", "octavo_edge", *argv, *lengths], cwd=ROOT, check=True)
    document = json.loads((out / "report.json").read_text())
    stages = document["stages"]
    exported = next(stage["source_digest"] for stage in stages if stage["stage"] == "compile")
    figures = {
        f"{recipe} build seconds": float(sum(stage["seconds"] for stage in stages)),
        f"{recipe} build peak bytes": float(max(stage["peak_rss_bytes"] for stage in stages)),
    }
    return store / "objects" / exported / "files", figures


def compile_all(exported: Path, out: Path) -> tuple[dict[str, float], int]:
    """The target's own compilation, without the simulator: its figures, and the bytes of all binaries."""
    out.mkdir(parents=True)
    started = time.monotonic()
    options = CompileOptions(values={"simulate": "no"})
    result = QnnHtpTarget().compile(ExportedModel(path=exported, digest=""), options, out)
    seconds = time.monotonic() - started
    binaries = {entry["binary"] for by_ar in read_blob(out).graphs.values() for entry in by_ar.values()}
    return {"target seconds": seconds, **result.metrics}, sum((out / name).stat().st_size for name in binaries)


def lower_all(exported: Path, manifest: ExportManifest, scratch: Path) -> dict[tuple[str, int], Path]:
    """All graphs in the compiler's form, by part and number of tokens."""
    paths = {}
    for part in manifest.parts:
        if part.kind == "embedding":
            continue
        folder = scratch / part.name
        folder.mkdir()
        with WeightsWriter(folder) as weights:
            for graph in part.graphs:
                paths[part.name, graph.ar] = folder / f"ar{graph.ar}.onnx"
                lower(exported / graph.file, paths[part.name, graph.ar], weights)
    return paths


def compile_alone(paths: Sequence[Path], scratch: Path) -> int:
    """Bytes of the binaries of graphs that share nothing."""
    size = 0
    for index, path in enumerate(paths):
        folder = scratch / f"alone{index}"
        folder.mkdir()
        job = {"model": str(path), "context": str(folder / "alone.onnx"), "shares": False}
        run_child(folder, graphs=[job], options=PROVIDER, timeout_s=3600)
        size += sum(file.stat().st_size for file in folder.glob("*.bin"))
    return size


def simulated(
    exported: Path, manifest: ExportManifest, lowered: Mapping[tuple[str, int], Path], ar: int, call: int
) -> dict[str, float]:
    """One call through all parts on the simulator, each of which reads what the one before made."""
    figures: dict[str, float] = {}
    carried: Arrays = {}
    losses: dict[str, float] = {}
    for part in manifest.parts:
        graph = part.graph(ar)
        inputs, expected = list(read_vectors(exported, graph))[call]
        if part.kind == "embedding":
            carried = dict(expected)
            continue
        feeds = {name: carried.get(name, values) for name, values in inputs.items()}
        path = lowered[part.name, ar]
        with TemporaryDirectory(dir=path.parent) as scratch:
            run = simulate(path, [feeds], options=PROVIDER, scratch=Path(scratch))
        carried = dict(run.outputs[0])
        losses |= {name: sqnr_db(values, carried[name]) for name, values in expected.items()}
        for name, value in (
            ("simulator seconds", sum(run.run_seconds)),
            ("simulator compile seconds", run.compile_seconds),
        ):
            figures[name] = figures.get(name, 0.0) + value
        figures["simulator peak bytes"] = max(figures.get("simulator peak bytes", 0.0), float(run.peak_rss_bytes))
        figures[f"{part.kind} nodes"] = float(num_nodes(path))
        if "logits" in expected:
            golden, got = expected["logits"], carried["logits"]
            figures |= {
                "logits dB": losses["logits"],
                "logits centred dB": centred_sqnr_db(golden, got),
                "logits mean KL nats": mean_kl(golden, got),
                "logits top-1": top1_agreement(golden, got),
            }
    for kind in ("key", "value"):
        found = [loss for name, loss in losses.items() if name.startswith(f"{kind}_")]
        figures |= {f"{kind}s worst dB": min(found), f"{kind}s median dB": float(np.median(found))}
    return figures


def num_nodes(path: Path) -> int:
    """Nodes besides quantisers."""
    nodes = onnx.load(str(path), load_external_data=False).graph.node
    return sum(node.op_type not in ("QuantizeLinear", "DequantizeLinear") for node in nodes)


def measure(recipe: str, exported: Path, scratch: Path) -> tuple[dict[str, float], list[Check]]:
    """All figures of one recipe."""
    manifest = read_manifest(exported)
    metrics, both = compile_all(exported, scratch / "shared" / "blob")
    lowered = lower_all(exported, manifest, scratch)
    largest = compile_alone([path for (_, ar), path in lowered.items() if ar == manifest.ars[0]], scratch)
    weights = sum(value for name, value in metrics.items() if name.endswith("_weights_bytes"))
    figures = {
        "binary bytes": float(both),
        "binary bytes of the largest graphs alone": float(largest),
        "weights bytes": weights,
        "target seconds": metrics["target seconds"],
        "compiler seconds": metrics["compile_seconds"],
        "compiler peak bytes": metrics["child_peak_rss_bytes"],
    }
    more = (both - largest) / weights
    checks = [
        Check(name=f"{recipe}: bytes that the other graphs add, by the weights", value=more, at_most=0.25),
        Check(name=f"{recipe}: all graphs by the largest alone", value=both / largest, at_most=1.05),
    ]
    largest_ar = manifest.ars[0]
    for ar, call in ((largest_ar, 0), (1, 1)):
        found = simulated(exported, manifest, lowered, ar, call)
        figures |= {f"{ar} tokens: {name}": value for name, value in found.items()}
        checks.append(Check(name=f"{recipe}: logits of {ar} tokens, dB", value=found["logits dB"], at_least=LEAST_DB))
        if ar == largest_ar:
            agreement = found["logits top-1"]
            checks.append(Check(name=f"{recipe}: top-1 of {ar} tokens", value=agreement, at_least=LEAST_TOP1))
    return {f"{recipe} {name}": value for name, value in figures.items()}, checks


def read_kept(files: Sequence[Path]) -> tuple[dict[str, float], list[Check], list[str]]:
    """Figures, checks and recipes of earlier results."""
    figures: dict[str, float] = {}
    checks: list[Check] = []
    recipes: list[str] = []
    for file in files:
        document = json.loads(file.read_text(encoding="utf-8"))
        figures |= document["figures"]
        checks += [Check(**{name: check[name] for name in check if name != "holds"}) for check in document["checks"]]
        recipes += document["settings"]["recipes"]
    return figures, checks, recipes


def page(result: Result, recipes: Sequence[str], before: str = "") -> str:
    """The figures as Markdown, a column a recipe; what was written by hand behind them on the page before stays."""
    machine = result.machine
    lines = [
        "# Qualcomm's HTP: the demo model, measured",
        "",
        f"Written by `python -m benchmarks.edge_htp` on {machine['processor']}, {machine['num_cores']} cores; load at "
        f"its end {machine['load_1m']}. SmolLM2-135M, context {CONTEXT}, graphs for {' and '.join(map(str, ARS))} "
        "tokens, Snapdragon 8 Elite. The simulator computes what the HTP does; its seconds say nothing of a device.",
        "",
        f"| figure | {' | '.join(recipes)} |",
        f"|---|{'---|' * len(recipes)}",
    ]
    names = dict.fromkeys(name.split(" ", 1)[1] for name in result.figures)
    for name in names:
        values = (result.figures.get(f"{recipe} {name}") for recipe in recipes)
        lines.append(f"| {name} | {' | '.join('' if value is None else _number(name, value) for value in values)} |")
    lines += ["", "| promise | found | asked for | holds |", "|---|---|---|---|"]
    for check in result.checks:
        asked = f">= {check.at_least}" if check.at_least is not None else f"<= {check.at_most}"
        lines.append(f"| {check.name} | {check.value:.3f} | {asked} | {'yes' if check.holds else '**no**'} |")
    _, heading, rest = before.partition("\n## ")
    return "\n".join(lines) + "\n" + heading + rest


def _number(name: str, value: float) -> str:
    if name.endswith("bytes") or "bytes of" in name:
        return f"{value / 1e6:.1f} MB"
    return f"{value:.4f}" if "top-1" in name or "KL" in name else f"{value:.1f}".removesuffix(".0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file or a directory; default: the demo model")
    parser.add_argument("--recipes", default="w8a16")
    parser.add_argument("--exports", default="", help="NAME=DIR of exported models, separated by commas")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "edge-htp")
    parser.add_argument("--kept", type=Path, action="append", default=[], help="a result whose columns come first")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    exports = {name: Path(folder) for name, folder in (pair.split("=") for pair in args.exports.split(",") if pair)}
    recipes = list(exports) or [name for name in args.recipes.split(",") if name]
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    figures, checks, columns = read_kept(args.kept)
    for recipe in recipes:
        exported = exports.get(recipe)
        if exported is None:
            model = args.model or demo_model()
            exported, built = build(model if model.is_file() else next(model.glob("*.gguf"), model), recipe, folder)
            figures |= built
            if recipe == "w8a16":
                checks += [
                    Check(
                        name=f"{recipe}: seconds for both targets",
                        value=built[f"{recipe} build seconds"],
                        at_most=MOST_BUILD_S,
                    ),
                    Check(name=f"{recipe}: peak bytes", value=built[f"{recipe} build peak bytes"], at_most=MOST_BYTES),
                ]
        with TemporaryDirectory(dir=folder) as scratch:
            measured, kept = measure(recipe, exported, Path(scratch))
        figures |= measured
        checks += kept
    columns += recipes
    settings = {"context_length": CONTEXT, "ars": list(ARS), "recipes": columns, "built": not exports}
    result = Result(benchmark="edge_htp", settings=settings, figures=figures, checks=tuple(checks))
    if args.page:
        before = args.page.read_text(encoding="utf-8") if args.page.exists() else ""
        args.page.write_text(page(result, columns, before), encoding="utf-8")
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
