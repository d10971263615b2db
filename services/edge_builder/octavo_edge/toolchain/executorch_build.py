"""Builds one ExecuTorch program in a process of its own, with a method `arN` for each number of new tokens.

The child takes the exported model's folder, a part's name and the program's path, runs what it wrote on the part's
vectors, and answers with the comparison.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_edge.graph.manifest import Part, PartGraph, read_manifest
from octavo_edge.models.config import read_config
from octavo_edge.models.parts import DecoderPart, decoder_part
from octavo_edge.quant.reading import floats, read_parameters
from octavo_edge.toolchain.comparison import Comparison
from octavo_edge.toolchain.process import TIMEOUT_S, answer, ask

__all__ = ["build_in_process", "method"]


def method(ar: int) -> str:
    """Name of the method for `ar` new tokens."""
    return f"ar{ar}"


def build_in_process(source: Path, part: str, program: Path, *, timeout_s: float = TIMEOUT_S) -> Comparison:
    """Build and run in a process of its own.

    Raises:
        LibraryFailed: It could not, crashed, or took longer than ``timeout_s``.
    """
    order = {"source": str(source.resolve()), "part": part, "program": str(program.resolve())}
    return Comparison(**ask(__name__, order, what=f"ExecuTorch, {part}", timeout_s=timeout_s))


def _work(order: Mapping[str, str]) -> dict[str, Any]:
    source, program = Path(order["source"]), Path(order["program"])
    part = next(entry for entry in read_manifest(source).parts if entry.name == order["part"])
    parameters = read_parameters(source / part.graphs[0].file)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(floats(value))) for name, value in parameters.items()}
    module = decoder_part(read_config(source), part, tensors)
    program.write_bytes(_built(module, part))
    return asdict(_compared(source, part, module, program))


def _built(module: DecoderPart, part: Part) -> bytes:
    """The program: methods that share their weights, what XNNPACK takes of them lowered to it."""
    exir = _module("executorch.exir")
    partitioner = _module("executorch.backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner
    exported = {method(graph.ar): torch.export.export(module, _zeros(graph)) for graph in part.graphs}
    lowered = exir.to_edge_transform_and_lower(
        exported,
        partitioner={name: [partitioner()] for name in exported},
        compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),
    )
    return bytes(lowered.to_executorch().buffer)


def _compared(source: Path, part: Part, module: DecoderPart, program: Path) -> Comparison:
    """The program's own run beside torch's and the golden one."""
    loaded: Any = _module("executorch.runtime").Runtime.get().load_program(program.read_bytes())
    comparison = Comparison()
    for graph in part.graphs:
        running = loaded.load_method(method(graph.ar))

        def run(feeds: Mapping[str, NDArray[Any]], graph: PartGraph = graph, running: Any = running) -> dict[str, Any]:
            return _named(graph, running.execute(_tensors(graph, feeds)))

        def reference(feeds: Mapping[str, NDArray[Any]], graph: PartGraph = graph) -> dict[str, Any]:
            with torch.inference_mode():
                return _named(graph, module(*_tensors(graph, feeds)))

        comparison.add(source, graph, run, reference)
    return comparison


def _zeros(graph: PartGraph) -> tuple[torch.Tensor, ...]:
    return tuple(torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in graph.inputs)


def _tensors(graph: PartGraph, feeds: Mapping[str, NDArray[Any]]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(feeds[tensor.name])) for tensor in graph.inputs]


def _named(graph: PartGraph, values: Any) -> dict[str, NDArray[Any]]:
    return {tensor.name: value.numpy().copy() for tensor, value in zip(graph.outputs, values, strict=True)}


def _module(name: str) -> Any:
    return importlib.import_module(name)


if __name__ == "__main__":
    answer(_work)
