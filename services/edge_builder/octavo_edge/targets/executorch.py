"""ExecuTorch with XNNPACK: a program for each part, with a method for each number of new tokens, for phones' CPUs.

The weights are what our integers stand for, in float32: XNNPACK takes integers of weights only where it also rounds
activations its own way. What was written is run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.target import (
    CompiledAndRun,
    CompileOptions,
    CompileResult,
    GraphSummary,
    TargetProfile,
    Unsupported,
    reasons_against,
)
from octavo_edge.toolchain.options import check_options
from octavo_edge.toolchain.process import LibraryFailed
from octavo_edge.toolchain.results import installed_version, unavailable

_PACKAGE = "executorch"
_LEAST_DB = 60.0  # rounding of float32 leaves over 100 dB


class ExecuTorchTarget:
    """The ExecuTorch that is installed here."""

    @property
    def profile(self) -> TargetProfile:
        """Takes everything, and runs it in float32."""
        return TargetProfile(name="executorch", version=installed_version(_PACKAGE))

    def missing(self) -> list[str]:
        """Why it cannot work here."""
        return [] if find_spec(_PACKAGE) else ["the package executorch is not installed: octavo[edge-executorch]"]

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Operators that are not ONNX's own. The program is made from torch, not from these nodes."""
        return reasons_against(self.profile, graph)

    def check_options(self, options: CompileOptions) -> None:
        """There are none. Raises InvalidArgument."""
        check_options(options, "executorch", {})

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write `PART.pte`, its methods `arN`, and run all vectors."""
        self.check_options(options)
        # torch, which whoever asks for the profile need not wait for.
        from octavo_edge.toolchain.comparison import Comparison
        from octavo_edge.toolchain.executorch_build import build_in_process, method
        from octavo_edge.toolchain.lowered import device_parts

        whole, files = Comparison(), dict[str, dict[int, dict[str, str]]]()
        try:
            for part in device_parts(model.path):
                file = f"{part.name}.pte"
                found = build_in_process(model.path, part.name, out / file)
                whole.golden |= found.golden
                whole.same_graph |= found.same_graph
                files[part.name] = {graph.ar: {"file": file, "function": method(graph.ar)} for graph in part.graphs}
            why = ""
        except LibraryFailed as error:
            why = str(error)
        else:
            name, loss_db = whole.worst(whole.same_graph)
            if loss_db < _LEAST_DB:
                why = f"its run differs from torch's: {name} {loss_db:.1f} dB"
        if why:
            return unavailable(out, why)
        size = write_blob(out, runtime="executorch", graphs=files, activations="float32")
        return CompileResult(
            outcome=CompiledAndRun(),
            metrics={
                "size_bytes": float(size),
                "num_graphs": float(sum(map(len, files.values()))),
                **whole.metrics(),
            },
            warnings=("weights, activations and caches are float32: 4 bytes a weight, encodings have no effect",),
            versions={_PACKAGE: installed_version(_PACKAGE)},
        )
