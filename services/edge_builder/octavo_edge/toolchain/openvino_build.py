"""Writes OpenVINO's representation of all graphs and runs it on the CPU, in a process of its own.

In the builder's own process its plug-in would leave an alternate stack for signals that it frees when it goes: the next
signal with a handler would end the process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import numpy as np

from octavo_edge.graph.manifest import PartGraph
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.graph.weights import WEIGHTS_FILE, WeightsWriter
from octavo_edge.toolchain.comparison import Comparison, Run
from octavo_edge.toolchain.lowered import LoweredGraph, device_parts
from octavo_edge.toolchain.process import TIMEOUT_S, answer, ask

__all__ = ["build_in_process", "xml_file"]


def build_in_process(
    source: Path, graphs: Sequence[LoweredGraph], out: Path, *, num_threads: int, timeout_s: float = TIMEOUT_S
) -> Comparison:
    """Write into ``out``, read it back, and run the vectors of the exported model ``source`` in a process of its own.

    Raises:
        LibraryFailed: It could not, crashed, or took longer than ``timeout_s``.
    """
    paths = [[low.part.name, low.graph.ar, str(low.path.resolve())] for low in graphs]
    order = {"source": str(source.resolve()), "out": str(out.resolve()), "graphs": paths, "num_threads": num_threads}
    return Comparison(**ask(__name__, order, what="OpenVINO", timeout_s=timeout_s))


def _work(order: Mapping[str, Any]) -> dict[str, Any]:
    source, out = Path(order["source"]), Path(order["out"])
    parts = {part.name: part for part in device_parts(source)}
    graphs = [
        LoweredGraph(part=parts[name], graph=parts[name].graph(ar), path=Path(path))
        for name, ar, path in order["graphs"]
    ]
    _write(graphs, out)
    comparison = Comparison()
    for low in graphs:
        run = _on_cpu(out, low.graph, num_threads=order["num_threads"])
        comparison.add(source, low.graph, run, OrtGraph(low.path).run)
    return asdict(comparison)


def _write(graphs: Sequence[LoweredGraph], out: Path) -> None:
    """Convert each graph, and move its constants into the file that all share."""
    import openvino

    core = openvino.Core()
    # All weights once more: beside what is made, where room was found for them.
    with WeightsWriter(out) as weights, TemporaryDirectory(prefix="openvino-", dir=out.parent) as scratch:
        for low in graphs:
            path = Path(scratch) / xml_file(low.graph)
            # Not convert_model: that reports to its makers over the network.
            openvino.save_model(core.read_model(low.path), path, compress_to_fp16=False)
            tree, data = ElementTree.parse(path), np.memmap(path.with_suffix(".bin"), np.uint8, "r")
            for layer in tree.iter("layer"):
                entry = layer.find("data")
                if layer.get("type") == "Const" and entry is not None and int(entry.get("size", "0")):
                    start, size = int(entry.get("offset", "0")), int(entry.get("size", "0"))
                    entry.set("offset", str(weights.put(data[start : start + size]).offset))
            tree.write(out / path.name)
            del data


def _on_cpu(out: Path, graph: PartGraph, *, num_threads: int) -> Run:
    """The files as the CPU plug-in runs them, products in float32 so that only the graph decides the result."""
    import openvino

    core = openvino.Core()
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    if num_threads:
        settings["INFERENCE_NUM_THREADS"] = str(num_threads)
    compiled = core.compile_model(core.read_model(out / xml_file(graph), out / WEIGHTS_FILE), "CPU", settings)

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        values = compiled(feeds)
        return {tensor.name: np.asarray(values[tensor.name]) for tensor in graph.outputs}

    return run


def xml_file(graph: PartGraph) -> str:
    """Name of a graph's representation; its constants are in the file that all share."""
    return f"{Path(graph.file).stem}.xml"


if __name__ == "__main__":
    answer(_work)
