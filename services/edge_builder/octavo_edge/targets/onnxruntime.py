"""ONNX Runtime on the CPU: runs the QDQ graphs as they are. The golden target, which others are compared with."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from octavo_common.errors import InvalidArgument
from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.manifest import PartGraph, read_manifest
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.target import (
    CompiledAndRun,
    CompileOptions,
    CompileResult,
    GraphSummary,
    TargetProfile,
    Unavailable,
    Unsupported,
    reasons_against,
)
from octavo_edge.toolchain.results import installed_version

_LEAST_OPSET, _MOST_OPSET = 21, 26


class OnnxRuntimeTarget:
    """The runtime that is installed here."""

    @property
    def profile(self) -> TargetProfile:
        """All of ONNX's operators and all schemes."""
        return TargetProfile(name="onnxruntime", version=installed_version("onnxruntime"), replays=True)

    def missing(self) -> list[str]:
        """Why it cannot run here."""
        return [] if find_spec("onnxruntime") else ["the package onnxruntime is not installed: octavo[edge]"]

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Private operators, and opsets that it does not know."""
        against = reasons_against(self.profile, graph)
        if not _LEAST_OPSET <= graph.opset <= _MOST_OPSET:
            reason = f"opset {graph.opset}; it takes {_LEAST_OPSET} to {_MOST_OPSET}"
            against.append(Unsupported(node="", op="", reason=reason))
        return against

    def check_options(self, options: CompileOptions) -> None:
        """There are none."""
        if options.values:
            known = f"onnxruntime has no option {', '.join(sorted(options.values))}"
            raise InvalidArgument(known, param="options")

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Take the graphs with their data, and run each once on its first test vectors.

        The embedding is left to the host: a graph turns the whole table into floats for each token.
        """
        from octavo_edge.graph.summary import summarise

        self.check_options(options)
        manifest = read_manifest(model.path)
        graphs = {part.name: part.graphs for part in manifest.parts if part.kind != "embedding"}
        names = [graph.file for by_ar in graphs.values() for graph in by_ar]
        against = [f"{name}: {reason}" for name in names for reason in self.check(summarise(model.path / name))]
        if against:
            return CompileResult(outcome=Unavailable("; ".join(against)))
        for name in (*names, WEIGHTS_FILE):
            shutil.copyfile(model.path / name, out / name)
        entries = {part: {graph.ar: {"file": graph.file} for graph in by_ar} for part, by_ar in graphs.items()}
        size_bytes = write_blob(out, runtime="onnxruntime", graphs=entries)
        return CompileResult(
            outcome=CompiledAndRun(),
            metrics={
                "size_bytes": float(size_bytes),
                "num_graphs": float(len(names)),
                "worst_sqnr_db": min(_replayed(out, model.path, graph) for by_ar in graphs.values() for graph in by_ar),
            },
            versions={"onnxruntime": installed_version("onnxruntime")},
        )


def _replayed(folder: Path, vectors: Path, graph: PartGraph) -> float:
    """The worst of a graph's outputs on its first vectors, in decibels."""
    from octavo_edge.graph.metrics import sqnr_db
    from octavo_edge.graph.runtime import OrtGraph

    with np.load(vectors / graph.vectors) as file:
        got = OrtGraph(folder / graph.file).run({tensor.name: file[f"0/{tensor.name}"] for tensor in graph.inputs})
        return min(sqnr_db(file[f"0/{name}"], values) for name, values in got.items())
