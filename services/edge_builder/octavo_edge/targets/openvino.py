"""OpenVINO: intermediate representation of the parts in Linear form, which its CPU, GPU and NPU plug-ins read.

Weights stay our integers, behind the scales that we gave them; activations and caches are floating point. All graphs
share one file of weights. What was written is read back and run on the CPU here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.recipe import QType
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
from octavo_edge.toolchain.lowered import lowered_graphs
from octavo_edge.toolchain.openvino_build import build_in_process, xml_file
from octavo_edge.toolchain.options import check_options
from octavo_edge.toolchain.process import LibraryFailed
from octavo_edge.toolchain.results import installed_version, unavailable

_PACKAGE = "openvino"
# Below this the plug-in computes something else than the graph says; rounding of float32 leaves over 100 dB.
_LEAST_DB = 60.0
_OPS = frozenset(
    {"Add", "Cast", "Concat", "Conv", "DequantizeLinear", "Div", "Expand", "Gather", "Gemm", "MatMul", "Mul", "Pow"}
    | {"QuantizeLinear", "RMSNormalization", "Reciprocal", "ReduceMean", "Reshape", "Sigmoid", "Slice", "Softmax"}
    | {"Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze"}
)


class OpenVinoTarget:
    """The OpenVINO that is installed here."""

    @property
    def profile(self) -> TargetProfile:
        """Weights of 4 and 8 bits; activations are taken in any form and run in floating point."""
        return TargetProfile(
            name="openvino",
            version=installed_version(_PACKAGE),
            ops=_OPS,
            weights=frozenset({QType.INT4, QType.INT8, QType.FLOAT16, QType.FLOAT32}),
        )

    def missing(self) -> list[str]:
        """Why it cannot run here."""
        return [] if find_spec(_PACKAGE) else ["the package openvino is not installed: octavo[edge-openvino]"]

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Operators that its reader was not tried with."""
        return reasons_against(self.profile, graph)

    def check_options(self, options: CompileOptions) -> None:
        """`num_threads` of the run here; 0 leaves that to OpenVINO. Raises InvalidArgument for all else."""
        check_options(options, "openvino", {"num_threads": str.isdecimal})

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write `PART_arN.xml` and the weights, read them back, and run all vectors. Raises as `check_options`."""
        self.check_options(options)
        num_threads = int(options.values.get("num_threads", "0"))
        from octavo_edge.graph.summary import summarise

        with lowered_graphs(model.path, out) as graphs:
            against = [f"{low.graph.file}: {why}" for low in graphs for why in self.check(summarise(low.path))]
            if against:
                return CompileResult(outcome=Unavailable("; ".join(against)))
            try:
                comparison = build_in_process(model.path, graphs, out, num_threads=num_threads)
            except LibraryFailed as error:
                return unavailable(out, str(error))
        name, loss_db = comparison.worst(comparison.same_graph)
        if loss_db < _LEAST_DB:
            return unavailable(out, f"its CPU run differs from ONNX Runtime's: {name} {loss_db:.1f} dB")
        files: dict[str, dict[int, dict[str, str]]] = {}
        for low in graphs:
            entry = {"file": xml_file(low.graph), "weights": WEIGHTS_FILE}
            files.setdefault(low.part.name, {})[low.graph.ar] = entry
        size = write_blob(out, runtime="openvino", graphs=files, activations="float32")
        return CompileResult(
            outcome=CompiledAndRun(),
            metrics={"size_bytes": float(size), "num_graphs": float(len(graphs)), **comparison.metrics()},
            warnings=("activations and caches are floating point: their encodings have no effect",),
            versions={"openvino": installed_version(_PACKAGE)},
        )
