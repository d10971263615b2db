"""Core ML: a package for each part, with a function for each number of new tokens over one set of weights.

The packages are made here and run on Apple's devices alone. Here their programs are read back: the integers of the
weights are ours, and what the program computes is compared in torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from octavo_edge.artifacts import ExportedModel
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.manifest import Part
from octavo_edge.quant.reading import Parameter, read_parameters
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
from octavo_edge.toolchain.lowered import device_parts
from octavo_edge.toolchain.options import check_options
from octavo_edge.toolchain.results import installed_version, unavailable

_PACKAGE = "coremltools"
# float16 has 11 bits: a decoder's logits keep more than this of what float32 gives.
_LEAST_DB = 30.0
_MOST_FLOAT16 = 65504.0


class CoreMlTarget:
    """The coremltools that is installed here, for iOS 18 and macOS 15."""

    @property
    def profile(self) -> TargetProfile:
        """Weights of 4 and 8 bits; activations are float16 whatever the recipe says."""
        return TargetProfile(
            name="coreml",
            version=installed_version(_PACKAGE),
            weights=frozenset({QType.INT4, QType.INT8, QType.FLOAT16, QType.FLOAT32}),
            runs_here=False,
        )

    def missing(self) -> list[str]:
        """Why it cannot compile here."""
        return [] if find_spec(_PACKAGE) else ["the package coremltools is not installed: octavo[edge-coreml]"]

    def check(self, graph: GraphSummary) -> Sequence[Unsupported]:
        """Operators that are not ONNX's own. The program is made from torch, not from these nodes."""
        return reasons_against(self.profile, graph)

    def check_options(self, options: CompileOptions) -> None:
        """`norms`: float32 (the default; exact, but not on the neural engine) or float16. Raises InvalidArgument."""
        check_options(options, "coreml", {"norms": ("float32", "float16")})

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        """Write `PART.mlpackage`; its functions are `prefill` (the most new tokens), `decode` (one) and `arN`."""
        self.check_options(options)
        from octavo_device.spec import read_spec

        spec = read_spec(model.path)
        if not abs(spec.mask_value) <= _MOST_FLOAT16:
            return CompileResult(outcome=Unavailable(f"the mask's {spec.mask_value} is no number of float16"))
        work = _Work(model.path, out, float32_norms=options.values.get("norms", "float32") == "float32")
        files = {part.name: work.build(part) for part in device_parts(model.path)}
        compared = work.comparison.same_graph  # empty where no graph could be run here: the warnings say of each why
        name, loss_db = work.comparison.worst(compared) if compared else ("", math.inf)
        if loss_db < _LEAST_DB:
            return unavailable(out, f"its program computes something else: {name} {loss_db:.1f} dB")
        size = write_blob(out, runtime="coreml", graphs=files, activations="float16")
        return CompileResult(
            outcome=Compiled(),
            metrics={
                "size_bytes": float(size),
                "num_graphs": float(sum(map(len, files.values()))),
                "num_compressed_weights": float(work.num_compressed),
                "largest_function_size_bytes": float(work.largest_function_bytes),
                **work.comparison.metrics(),
            },
            warnings=("activations and caches are float16: their encodings have no effect", *work.warnings),
            versions={_PACKAGE: installed_version(_PACKAGE)},
        )


class _Work:
    """One run of the target."""

    def __init__(self, source: Path, out: Path, *, float32_norms: bool) -> None:
        self._source, self._out, self._float32_norms = source, out, float32_norms
        self.comparison = Comparison()
        self.num_compressed = 0
        self.largest_function_bytes = 0  # of all parts, each with its largest function alone
        self.warnings: list[str] = []

    def build(self, part: Part) -> Mapping[int, Mapping[str, str]]:
        """One part: its entries in `blob.json`."""
        import torch

        from octavo_edge.models.config import read_config
        from octavo_edge.models.parts import decoder_part
        from octavo_edge.quant.reading import floats
        from octavo_edge.toolchain.mil import join, package

        parameters = read_parameters(self._source / part.graphs[0].file)
        tensors = {name: torch.from_numpy(np.ascontiguousarray(floats(value))) for name, value in parameters.items()}
        module = decoder_part(read_config(self._source), part, tensors)
        path = self._out / f"{part.name}.mlpackage"
        functions = {graph.ar: _function(graph.ar, part) for graph in part.graphs}
        with TemporaryDirectory(prefix="coreml-", dir=self._out.parent) as scratch:
            packages = {graph.ar: Path(scratch) / f"ar{graph.ar}.mlpackage" for graph in part.graphs}
            for graph in part.graphs:
                package(module, graph, parameters, packages[graph.ar], float32_norms=self._float32_norms)
            self.largest_function_bytes += max(map(_size, packages.values()))
            join({functions[ar]: source for ar, source in packages.items()}, path)
        self._check(part, path, functions, parameters)
        self._compare(part, path, functions, module)
        return {ar: {"file": path.name, "function": name} for ar, name in functions.items()}

    def _check(self, part: Part, path: Path, functions: Mapping[int, str], parameters: Mapping[str, Parameter]) -> None:
        """The integers that were written are ours, all of them, and scales differ by rounding to float16 alone."""
        from octavo_edge.quant.plan import QuantisedWeight
        from octavo_edge.toolchain.mil import can_compress, compressed, compressed_weights, read_program

        products = {name: value for name, value in parameters.items() if isinstance(value, QuantisedWeight)}
        expected = sorted(_key(compressed(value)) for value in products.values() if can_compress(value))
        left = sorted(name for name, value in products.items() if not can_compress(value))
        if left:
            self.warnings.append(f"{part.name}: {', '.join(left)} are float16, since Core ML has no such integers")
        program = read_program(path)
        for name in functions.values():
            found = sorted(_key(weight) for weight in compressed_weights(program.functions[name]))
            assert found == expected, f"{path.name}, {name}: the weights are the integers that were given"
        self.num_compressed += len(expected)

    def _compare(self, part: Part, path: Path, functions: Mapping[int, str], module: Any) -> None:
        import torch

        from octavo_edge.toolchain.mil import read_program
        from octavo_edge.toolchain.mil_run import UnknownOperation, run_function

        program = read_program(path)
        for graph in part.graphs:
            names = [tensor.name for tensor in graph.outputs]

            def reference(inputs: Mapping[str, Any], graph: Any = graph, names: list[str] = names) -> dict[str, Any]:
                with torch.inference_mode():
                    values = module(*(torch.from_numpy(inputs[tensor.name]) for tensor in graph.inputs))
                return {name: value.numpy() for name, value in zip(names, values, strict=True)}

            function = program.functions[functions[graph.ar]]
            try:
                self.comparison.add(self._source, graph, lambda feeds, f=function: run_function(f, feeds), reference)
            except UnknownOperation as unknown:
                self.warnings.append(f"{graph.file}: not compared, for want of {unknown}")


def _function(ar: int, part: Part) -> str:
    if ar == 1:
        return "decode"
    return "prefill" if ar == max(graph.ar for graph in part.graphs) else f"ar{ar}"


def _key(weight: Any) -> tuple[Any, ...]:
    return (weight.integers.shape, weight.integers.tobytes(), weight.scale.tobytes())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
