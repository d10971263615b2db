"""Running a graph in pieces, one after another over all batches, so that memory holds one piece's weights.

A piece is a range of nodes in topological order. What later pieces read of earlier ones is kept for every batch; the
rest is gone when a piece is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from octavo_edge.quant.topology import Topology

Arrays = Mapping[str, NDArray[Any]]
# The values of a constant as the piece is to have them; None leaves it as it is.
Override = Callable[[str], "NDArray[Any] | None"]

_FATAL_ONLY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Nodes [start, stop), the tensors that they read from outside and those that are read outside."""

    start: int
    stop: int
    reads: tuple[str, ...]
    gives: tuple[str, ...]


def cut(graph: Topology, starts: Sequence[int]) -> list[Segment]:
    """Pieces that begin at node 0 and at each of ``starts``."""
    borders = sorted({0, *starts} | {len(graph.nodes)})
    outputs = set(graph.outputs)
    segments: list[Segment] = []
    for start, stop in itertools.pairwise(borders):
        made = [name for node in graph.nodes[start:stop] for name in node.output if name]
        inside = set(made)
        read = {name for node in graph.nodes[start:stop] for name in node.input if name}
        reads = tuple(name for name in sorted(read) if name not in inside and name not in graph.constants)
        gives = tuple(name for name in made if name in outputs or any(i >= stop for i in graph.readers.get(name, ())))
        segments.append(Segment(start=start, stop=stop, reads=reads, gives=gives))
    return segments


class SegmentRun:
    """One piece as a session of ONNX Runtime."""

    def __init__(self, graph: Topology, segment: Segment, *, also: Sequence[str] = (), override: Override) -> None:
        """``also`` are tensors of the piece that are wanted besides those that others read."""
        nodes = graph.nodes[segment.start : segment.stop]
        used = {name for node in nodes for name in node.input}
        self.outputs = tuple(dict.fromkeys((*segment.gives, *also)))
        self._reads = segment.reads
        if not self.outputs:
            self._session = None
            return
        constants = [_tensor(graph, name, override) for name in graph.constants if name in used]
        model = helper.make_model(
            helper.make_graph(
                nodes,
                "segment",
                [_value(graph, name) for name in segment.reads],
                [_value(graph, name) for name in self.outputs],
                constants,
            ),
            opset_imports=graph.model.opset_import,
            ir_version=graph.model.ir_version,
        )
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL_ONLY
        options.enable_cpu_mem_arena = False  # an arena keeps the largest piece's memory until the session ends
        self._session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """All outputs for one batch."""
        if self._session is None:
            return {}
        values = self._session.run(list(self.outputs), {name: feeds[name] for name in self._reads})
        return dict(zip(self.outputs, map(np.asarray, values), strict=True))


def last_reads(segments: Sequence[Segment]) -> dict[str, int]:
    """The last piece that reads each tensor that crosses a border."""
    return {name: index for index, segment in enumerate(segments) for name in segment.reads}


def _tensor(graph: Topology, name: str, override: Override) -> onnx.TensorProto:
    values = override(name)
    return numpy_helper.from_array(np.ascontiguousarray(graph.constant(name) if values is None else values), name)


def _value(graph: Topology, name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, graph.types[name], None)
