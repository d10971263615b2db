"""ONNX Runtime on the CPU: runs the QDQ graphs as they are. The golden target, which others are compared with."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from octavo_common.errors import InvalidArgument
from octavo_edge.artifacts import QuantisedGraph
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

_LEAST_OPSET, _MOST_OPSET = 21, 26


class OnnxRuntimeTarget:
    """The runtime that is installed here."""

    @property
    def profile(self) -> TargetProfile:
        """All of ONNX's operators and all schemes."""
        return TargetProfile(name="onnxruntime", version=_version())

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

    def compile(self, model: QuantisedGraph, options: CompileOptions, out: Path) -> CompileResult:
        """Copy the graphs and their data, and run each once on a few tokens.

        Raises:
            InvalidArgument: An option, since there is none.
        """
        if options.values:
            known = f"onnxruntime has no option {', '.join(sorted(options.values))}"
            raise InvalidArgument(known, param="options")
        from octavo_device.feeds import Decoding
        from octavo_device.spec import graph_file, read_spec
        from octavo_edge.graph.runtime import OrtModel
        from octavo_edge.graph.summary import summarise

        spec = read_spec(model.path)
        names = [graph_file(ar) for ar in spec.ars]
        against = [f"{name}: {reason}" for name in names for reason in self.check(summarise(model.path / name))]
        if against:
            return CompileResult(outcome=Unavailable("; ".join(against)))
        for name in (*names, "weights.data", "spec.json"):
            shutil.copyfile(model.path / name, out / name)
        graphs = OrtModel(out)
        for ar in spec.ars:
            Decoding(spec, graphs).logits([0] * min(ar, 2), ars=[ar])
            graphs.release(ar)
        size = sum((out / name).stat().st_size for name in (*names, "weights.data"))
        return CompileResult(
            outcome=CompiledAndRun(),
            metrics={"size_bytes": float(size), "num_graphs": float(len(names))},
            versions={"onnxruntime": _version()},
        )


def _version() -> str:
    try:
        return importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:
        return ""
