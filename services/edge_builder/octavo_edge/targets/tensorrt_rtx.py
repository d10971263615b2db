"""TensorRT-RTX: engines for GeForce and RTX cards, built without one.

Weights stay our integers, activations are floating point. One engine serves all numbers of new tokens by a range of
shapes, since two engines would have the weights twice; where the graph does not allow that, each has its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from octavo_device.feeds import Arrays
from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.graph.summary import summarise
from octavo_edge.passes.dynamic import CannotGeneralise, for_any_length
from octavo_edge.passes.half import to_half
from octavo_edge.recipe import QType
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
from octavo_edge.toolchain.comparison import Comparison
from octavo_edge.toolchain.lowered import LoweredGraph, lowered_graphs
from octavo_edge.toolchain.options import check_options
from octavo_edge.toolchain.process import LibraryFailed
from octavo_edge.toolchain.results import installed_version, unavailable
from octavo_edge.toolchain.tensorrt_rtx_build import Order, Shapes, build_in_process

_PACKAGE, _MODULE = "tensorrt_rtx_cu13", "tensorrt_rtx"
_CAPABILITIES = ("75", "80", "86", "89", "120", "121")
_ASYMMETRIC = frozenset({"uint4", "uint8", "uint16", "int16"})
_OPENED_DB = 100.0
# float16 has 11 bits: a decoder keeps more than this of what float32 gives.
_HALF_DB = 30.0


class TensorRtRtxTarget:
    """The TensorRT-RTX that is installed here."""

    @property
    def profile(self) -> TargetProfile:
        """Symmetric weights of 4 and 8 bits; activations are taken in any form and run in floating point."""
        return TargetProfile(
            name="tensorrt-rtx",
            version=installed_version(_PACKAGE),
            weights=frozenset({QType.INT4, QType.INT8, QType.FLOAT16, QType.FLOAT32}),
            runs_here=False,
        )

    def missing(self) -> list[str]:
        """Why it cannot build here."""
        return [] if find_spec(_MODULE) else ["the package tensorrt_rtx is not installed: octavo[edge-tensorrt]"]

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Operators that are not ONNX's own, and integers that it has not: 16 bits, or with a zero point."""
        against = reasons_against(self.profile, graph)
        for node in graph.nodes:
            if node.op in ("QuantizeLinear", "DequantizeLinear") and (kinds := _ASYMMETRIC.intersection(node.dtypes)):
                reason = f"TensorRT-RTX has no {', '.join(sorted(kinds))}"
                against.append(Unsupported(node=node.name, op=node.op, reason=reason))
        return against

    def check_options(self, options: CompileOptions) -> None:
        """`compute_capability` of the card (89), `precision` of activations (float16). InvalidArgument for all else."""
        known = {"compute_capability": _CAPABILITIES, "precision": ("float16", "float32")}
        check_options(options, "tensorrt-rtx", known)

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write an engine for each part."""
        self.check_options(options)
        capability = int(options.values.get("compute_capability", "89"))
        precision = options.values.get("precision", "float16")
        with lowered_graphs(model.path, out) as graphs:
            against = [f"{low.graph.file}: {why}" for low in graphs for why in self.check(summarise(low.path))]
            if against:
                return CompileResult(outcome=Unavailable("; ".join(against)))
            work = _Work(model.path, out, compute_capability=capability, half=precision == "float16")
            try:
                for name in dict.fromkeys(low.part.name for low in graphs):
                    work.build(name, [low for low in graphs if low.part.name == name])
                work.check()
            except LibraryFailed as error:
                return unavailable(out, str(error))
        size = write_blob(
            out, runtime="tensorrt-rtx", graphs=work.files, activations=precision, compute_capability=capability
        )
        return CompileResult(
            outcome=Compiled(),
            metrics={
                "size_bytes": float(size),
                "num_graphs": float(len(graphs)),
                "num_engines": float(work.num_engines),
                **work.comparison.metrics(),
            },
            warnings=("activations and caches are floating point: their encodings have no effect", *work.warnings),
            versions={_MODULE: installed_version(_PACKAGE)},
        )


class _Work:
    """One run of the target."""

    def __init__(self, source: Path, out: Path, *, compute_capability: int, half: bool) -> None:
        self._source, self._out, self._capability, self._half = source, out, compute_capability, half
        self.files: dict[str, Mapping[int, Mapping[str, str]]] = {}
        self.comparison = Comparison()
        self.warnings: list[str] = []
        self.num_engines = 0

    def build(self, name: str, graphs: Sequence[LoweredGraph]) -> None:
        """One part. Raises LibraryFailed."""
        whole = self._for_any_length(name, graphs) if len(graphs) > 1 else None
        if whole is None:
            for low in graphs:
                path = self._precise(low.path)
                self._compare(path, [low])
                self._engine(path, f"{low.path.stem}.engine", {})
            self.files[name] = {low.graph.ar: {"file": f"{low.path.stem}.engine"} for low in graphs}
            return
        opened, profile = whole
        path = self._precise(opened)
        self._compare(path, graphs)
        self._engine(path, f"{name}.engine", profile)
        self.files[name] = {low.graph.ar: {"file": f"{name}.engine"} for low in graphs}

    def check(self) -> None:
        """Raises LibraryFailed if what the engines were made of computes something else than the lowered graphs."""
        output, loss_db = self.comparison.worst(self.comparison.same_graph)
        if loss_db < (_HALF_DB if self._half else _OPENED_DB):
            raise LibraryFailed(f"{output} loses too much in float16 ({loss_db:.1f} dB): precision=float32")

    def _precise(self, path: Path) -> Path:
        """The graph in the precision that was asked for."""
        if not self._half:
            return path
        half = path.with_name(f"{path.stem}_half.onnx")
        onnx.save(to_half(onnx.load(str(path), load_external_data=False), path.parent), str(half))
        return half

    def _compare(self, path: Path, graphs: Sequence[LoweredGraph]) -> None:
        """What the engine is made of, in ONNX Runtime beside the graphs that it stands for."""
        running = OrtGraph(path)

        def run(feeds: Arrays) -> Arrays:
            given = {name: self._as_half(values) for name, values in feeds.items()} if self._half else feeds
            return {name: values.astype(np.float32) for name, values in running.run(given).items()}

        for low in graphs:
            self.comparison.add(self._source, low.graph, run, OrtGraph(low.path).run)

    @staticmethod
    def _as_half(values: Any) -> Any:
        return values.astype(np.float16) if values.dtype == np.float32 else values

    def _engine(self, path: Path, file: str, profile: Mapping[str, Shapes]) -> None:
        build_in_process(
            Order(
                onnx=str(path),
                engine=str(self._out / file),
                compute_capability=self._capability,
                profile=profile,
            )
        )
        self.num_engines += 1

    def _for_any_length(self, name: str, graphs: Sequence[LoweredGraph]) -> tuple[Path, Mapping[str, Shapes]] | None:
        """The graph with open shapes, and its range of shapes; None if there can be none."""
        models = [onnx.load(str(low.path), load_external_data=False) for low in graphs]
        columns = next((t.shape[-1] for t in graphs[0].graph.inputs if t.name == "attention_mask"), 0)
        try:
            whole = for_any_length(models[0], models[-1], context_length=columns)
        except CannotGeneralise as error:
            self.warnings.append(f"{name}: an engine for each number of new tokens, since {error}")
            return None
        path = graphs[0].path.with_name(f"{name}.onnx")
        onnx.save(whole, str(path))
        return path, _profile(whole, [low.graph.ar for low in graphs], columns)


def _profile(model: onnx.ModelProto, ars: Sequence[int], columns: int) -> dict[str, Shapes]:
    """Shapes of the inputs that are open: least, usual (the most new tokens) and greatest.

    Past and new tokens are `columns` in every call; but the range of their sum has to hold the sums of all of theirs.
    """
    most, least = max(ars), min(ars)
    sizes = {
        "new": (least, most, most),
        "past": (columns - most, columns - most, columns - least),
        "columns": (columns - most + least, columns, columns - least + most),
    }
    found: dict[str, Shapes] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if any(dim.dim_param for dim in dims):
            low, usual, high = (
                tuple(sizes[dim.dim_param][index] if dim.dim_param else dim.dim_value for dim in dims)
                for index in range(3)
            )
            found[value.name] = (low, usual, high)
    return found
