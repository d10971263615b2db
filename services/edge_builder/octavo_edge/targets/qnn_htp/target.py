"""The target: lowers the parts, lets the child compile them, checks what came out, and runs small ones simulated."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from octavo_common.errors import Internal
from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.manifest import Part, PartGraph, read_manifest
from octavo_edge.graph.summary import summarise
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.parts.vectors import read_vectors
from octavo_edge.passes.editing import attributes
from octavo_edge.recipe import Granularity, QType
from octavo_edge.target import (
    Compiled,
    CompileOptions,
    CompileResult,
    GraphSummary,
    TargetProfile,
    Unavailable,
    Unsupported,
    reasons_against,
)
from octavo_edge.targets.qnn_htp.lowering import lower, weights_against
from octavo_edge.targets.qnn_htp.options import HtpOptions, read_options
from octavo_edge.targets.qnn_htp.process import run_child
from octavo_edge.targets.qnn_htp.simulate import simulate
from octavo_edge.toolchain.results import installed_version

_PACKAGE = "onnxruntime-qnn"
_RUNTIME = "onnxruntime-qnn"
_TIMEOUT_S = 1800.0  # of one part's compilation
_SMALL_BYTES = 4 << 20  # weights of a model that is simulated without being asked: seconds for a token
_LEAST_DB = 45.0  # below this the simulator's outputs are worth a warning
_OPS = frozenset(
    {
        *("Add", "Concat", "Conv", "DequantizeLinear", "Div", "Gather", "MatMul", "Mul", "Pow", "QuantizeLinear"),
        *("Reciprocal", "ReduceMean", "Reshape", "RMSNormalization", "Sigmoid", "Slice", "Softmax", "Split", "Sqrt"),
        *("Squeeze", "Sub", "Transpose", "Unsqueeze"),
    }
)


@dataclass(slots=True)
class _Measured:
    """What a compilation has told, part by part."""

    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    peak_rss_bytes: int = 0

    def add(self, name: str, value: float) -> None:
        self.metrics[name] = self.metrics.get(name, 0.0) + value


class QnnHtpTarget:
    """The HTP of Qualcomm's SoCs, by the compiler in onnxruntime-qnn."""

    @property
    def profile(self) -> TargetProfile:
        """Integers of 8 and 16 bits between nodes; weights of 4 and 8, with scales per channel or LPBQ."""
        return TargetProfile(
            name="qnn-htp",
            version=installed_version(_PACKAGE),
            ops=_OPS,
            activations=frozenset({QType.INT8, QType.INT16}),
            granularities=frozenset({Granularity.PTQ, Granularity.PCQ, Granularity.LPBQ}),
            runs_here=False,
        )

    def missing(self) -> list[str]:
        """Why it cannot compile here."""
        reasons = []
        if not find_spec("onnxruntime_qnn"):
            reasons.append(f"the package {_PACKAGE} is not installed: octavo[edge-qnn]")
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            reasons.append(f"its compiler is for Linux on x86_64, and this is {platform.system()} {platform.machine()}")
        return reasons

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Operators that its compiler was not tried with."""
        return reasons_against(self.profile, graph)

    def check_options(self, options: CompileOptions) -> None:
        """See `read_options`."""
        read_options(options)

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write a context binary for each part, with the graphs of all ARs, and an ONNX file for each that names it.

        The embedding is left to the host. The graphs of models of a few megabytes, or of all if asked, are run on the
        simulator, which compiles them anew; the binaries are for the device.

        Raises:
            InvalidArgument: As `read_options`.
            ToolchainFailed: The vendor's library refused or crashed.
        """
        asked = read_options(options)
        manifest = read_manifest(model.path)
        parts = [part for part in manifest.parts if part.kind != "embedding"]
        if against := [
            f"{graph.file}: {why}" for part in parts for graph in part.graphs for why in self._check(model, graph)
        ]:
            return CompileResult(outcome=Unavailable("; ".join(against)))
        measured = _Measured()
        simulated = asked.simulate == "yes" or (
            asked.simulate == "auto" and _weight_bytes(model, parts) <= _SMALL_BYTES
        )
        graphs: dict[str, dict[int, dict[str, str]]] = {}
        with TemporaryDirectory(prefix=".qnn-htp-", dir=out.parent) as folder:
            for part in parts:
                lowered = Path(folder) / part.name
                lowered.mkdir()
                measured.metrics[f"{part.name}_weights_bytes"] = _lower_part(model, part, lowered)
                graphs[part.name] = _compile_part(part, lowered, out, asked, measured)
                if simulated:
                    _simulate_part(model, part, lowered, asked, measured)
        size = write_blob(
            out,
            runtime=_RUNTIME,
            graphs=graphs,
            soc_model=asked.soc.number,
            htp_arch=asked.htp_arch,
            shares_weights=asked.share_weights and len(manifest.ars) > 1,
        )
        return CompileResult(
            outcome=Compiled(),
            metrics={
                "size_bytes": float(size),
                "num_graphs": float(sum(map(len, graphs.values()))),
                "child_peak_rss_bytes": float(measured.peak_rss_bytes),
                **measured.metrics,
            },
            warnings=tuple(measured.warnings),
            versions={_PACKAGE: installed_version(_PACKAGE), "qnn": _qnn_version()},
            details={
                "soc": str(asked.soc),
                # The binaries themselves have run nowhere: the simulator compiles for itself.
                "simulated": "the graphs that were compiled, not the binaries" if simulated else "no",
                "binaries": _binaries(out, graphs),
            },
        )

    def _check(self, model: ExportedModel, graph: PartGraph) -> list[str]:
        path = model.path / graph.file
        return [*map(str, self.check(summarise(path))), *weights_against(path)]


def _binaries(out: Path, graphs: Mapping[str, Mapping[int, Mapping[str, str]]]) -> list[dict[str, object]]:
    """Which graphs are in which binary: those in one share the part's weights."""
    by_binary: dict[str, list[str]] = {}
    for part, by_ar in graphs.items():
        for ar, entry in by_ar.items():
            by_binary.setdefault(entry["binary"], []).append(f"{part} for {ar}")
    return [
        {"binary": name, "size_bytes": (out / name).stat().st_size, "graphs": ", ".join(held)}
        for name, held in by_binary.items()
    ]


def _lower_part(model: ExportedModel, part: Part, folder: Path) -> float:
    """Write the part's lowered graphs with the weights that they share; bytes of these."""
    with WeightsWriter(folder) as weights:
        for graph in part.graphs:
            lower(model.path / graph.file, folder / f"ar{graph.ar}.onnx", weights)
        return float(weights.size_bytes)


def _compile_part(
    part: Part, lowered: Path, out: Path, options: HtpOptions, measured: _Measured
) -> dict[int, dict[str, str]]:
    shares = options.share_weights and len(part.graphs) > 1
    jobs, files = [], {}
    for graph in part.graphs:
        files[graph.ar] = f"{part.name}_ar{graph.ar}.onnx"
        jobs.append(
            {
                "model": str(lowered / f"ar{graph.ar}.onnx"),
                "context": str(out / files[graph.ar]),
                "shares": shares,
            }
        )
    with TemporaryDirectory(dir=lowered) as scratch:
        result = run_child(Path(scratch), graphs=jobs, options=options.provider(), timeout_s=_TIMEOUT_S)
    measured.peak_rss_bytes = max(measured.peak_rss_bytes, result.peak_rss_bytes)
    measured.add("compile_seconds", sum(graph.compile_seconds for graph in result.graphs))
    entries = {ar: {"file": file, "binary": _context(out, file)} for ar, file in files.items()}
    if shares and len({entry["binary"] for entry in entries.values()}) > 1:
        raise Internal(f"{part.name}: the compiler wrote a binary for each graph, so that they share no weights")
    return entries


def _context(out: Path, name: str) -> str:
    """The binary that an EPContext file names, and that holds its graph.

    Raises:
        Internal: Not all of the graph is in it.
    """
    nodes = onnx.load(str(out / name), load_external_data=False).graph.node
    if [node.op_type for node in nodes] != ["EPContext"]:
        raise Internal(f"{name}: not all of the graph is in the binary: {sorted({node.op_type for node in nodes})}")
    values = attributes(nodes[0])
    binary = values["ep_cache_context"].decode()
    if not (out / binary).is_file() or values["partition_name"] not in (out / binary).read_bytes():
        raise Internal(f"{name}: its graph is not in {binary}")
    return binary


def _simulate_part(model: ExportedModel, part: Part, lowered: Path, options: HtpOptions, measured: _Measured) -> None:
    for graph in part.graphs:
        calls = list(read_vectors(model.path, graph))
        with TemporaryDirectory(dir=lowered) as scratch:
            run = simulate(
                lowered / f"ar{graph.ar}.onnx",
                [inputs for inputs, _ in calls],
                options=options.provider(),
                scratch=Path(scratch),
            )
        measured.peak_rss_bytes = max(measured.peak_rss_bytes, run.peak_rss_bytes)
        measured.add("simulator_seconds", sum(run.run_seconds))
        losses = run.losses([outputs for _, outputs in calls])
        worst = min(losses, key=lambda name: losses[name])
        measured.metrics[f"{part.name}_ar{graph.ar}_worst_sqnr_db"] = losses[worst]
        known = measured.metrics.get("worst_sqnr_db", math.inf)
        measured.metrics["worst_sqnr_db"] = min(known, losses[worst])
        if losses[worst] < _LEAST_DB:
            measured.warnings.append(
                f"on the simulator {part.name} for {graph.ar} tokens loses most at {worst}: {losses[worst]:.1f} dB"
            )


def _weight_bytes(model: ExportedModel, parts: Sequence[Part]) -> int:
    return sum(summarise(model.path / part.graphs[0].file).weight_bytes for part in parts)


def _qnn_version() -> str:
    """Of the vendor's libraries in the package; read without loading any of them."""
    from onnxruntime_qnn import build_and_package_info

    return str(getattr(build_and_package_info, "qnn_version", ""))
