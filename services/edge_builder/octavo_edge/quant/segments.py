"""Running a graph in pieces, one after another over all batches, so that memory holds one piece's weights.

A piece is a range of nodes in topological order. What later pieces read of earlier ones is kept for every batch; the
rest is gone when a piece is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
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

_ERRORS_ONLY = 3
_LARGE_BYTES = 1 << 20
_NUMPY_TYPES = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    | {onnx.TensorProto.INT16, onnx.TensorProto.UINT16}
)
_SMALL = 1024  # a constant of less than this part of a piece does not count


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
        options = ort.SessionOptions()
        # Values that ONNX Runtime reads where they are; in the model they would be copied four times. They must
        # outlive the session.
        self._held: dict[str, ort.OrtValue] = {}
        constants: list[onnx.TensorProto] = []
        for name in graph.constants:
            if name in used:
                values = override(name)
                values = _large(graph, name) if values is None else np.ascontiguousarray(values)
                if values is None:
                    constants.append(graph.tensor(name))
                elif values.nbytes < _LARGE_BYTES:
                    constants.append(numpy_helper.from_array(values, name))
                else:
                    self._held[name] = ort.OrtValue.ortvalue_from_numpy(values)
                    constants.append(_elsewhere(name, values))
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
        options.add_external_initializers(list(self._held), list(self._held.values()))
        options.log_severity_level = _ERRORS_ONLY
        options.enable_cpu_mem_arena = False  # an arena keeps the largest piece's memory until the session ends
        # Many small sessions: threads that wait by spinning take the cores from those that work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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


def run_by_pieces(
    graph: Topology,
    batches: Sequence[Arrays],
    sink: Callable[[int, str, NDArray[Any]], None],
    on_piece: Callable[[int, int], None],
    *,
    also: Collection[str] = (),
    piece_bytes: int = 32 << 20,
) -> None:
    """Run a graph on all batches; ``sink`` gets each graph output, and each tensor of ``also``, when it is known.

    Pieces hold constants of ``piece_bytes``, or one constant that is larger.
    """
    segments = cut(graph, starts_by_bytes(graph, piece_bytes))
    last = last_reads(segments)
    told = {*graph.outputs, *also}
    live: list[dict[str, NDArray[Any]]] = [{} for _ in batches]
    for index, segment in enumerate(segments):
        made = {name for node in graph.nodes[segment.start : segment.stop] for name in node.output}
        session = SegmentRun(graph, segment, also=sorted(made & set(also)), override=lambda _: None)
        for number, (kept, batch) in enumerate(zip(live, batches, strict=True)):
            outputs = session.run({name: kept[name] if name in kept else batch[name] for name in segment.reads})
            for name, values in outputs.items():
                if name in told:
                    sink(number, name, values)
            kept.update((name, outputs[name]) for name in segment.gives)
            for name in [name for name in kept if last.get(name, -1) <= index]:
                del kept[name]
        on_piece(index + 1, len(segments))


def starts_by_bytes(graph: Topology, piece_bytes: int) -> list[int]:
    """Where pieces begin whose constants are of about ``piece_bytes`` at most, or one constant that is larger.

    A shape or a factor begins none: behind the head that would keep the logits of all batches for it.
    """
    starts: list[int] = []
    held, seen = 0, set()
    for index, node in enumerate(graph.nodes):
        new = [name for name in node.input if name in graph.constants and name not in seen]
        size = sum(graph.constant_bytes(name) for name in new)
        if held and held + size > piece_bytes and size > piece_bytes // _SMALL:
            starts.append(index)
            held = 0
        held += size
        seen.update(new)
    return starts


def _large(graph: Topology, name: str) -> NDArray[Any] | None:
    """A large constant of a type that NumPy has; None if it is small or of another."""
    kind = graph.constants[name].data_type
    if kind not in _NUMPY_TYPES or graph.constant_bytes(name) < _LARGE_BYTES:
        return None
    return np.ascontiguousarray(graph.constant(name))


def _elsewhere(name: str, values: NDArray[Any]) -> onnx.TensorProto:
    """A tensor whose values are handed over beside the model."""
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=values.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "memory"), ("offset", "0"), ("length", str(values.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _value(graph: Topology, name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, graph.types[name], None)
