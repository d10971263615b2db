"""An ONNX graph with its edges: who makes a tensor, who reads it, what type it has, what a constant holds.

Weights stay in their file until they are asked for. Nothing here changes a graph.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, numpy_helper

from octavo_edge.graph.summary import tensor_bytes
from octavo_edge.quant.errors import CannotQuantise

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)

# Operators that only move or copy elements: what comes out lies on the grid of what went in.
MOVEMENT = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
    | {"Transpose", "Unsqueeze"}
)


class Topology:
    """The nodes of a graph in topological order, by index.

    Raises:
        CannotQuantise: The graph has subgraphs, or an operator of a runtime's own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = onnx.load(path, load_external_data=False)
        self.graph = self.model.graph
        self.nodes = list(self.graph.node)
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self.inputs = [value.name for value in self.graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in self.graph.output]
        self.producer: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
                raise CannotQuantise(f"{path.name}: node {node.name} ({node.op_type}) has a graph of its own")
            if node.domain not in ("", "ai.onnx"):
                raise CannotQuantise(f"{path.name}: node {node.name} is an operator of the domain {node.domain!r}")
            for name in node.output:
                self.producer[name] = index
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(index)

    @functools.cached_property
    def types(self) -> dict[str, int]:
        """ONNX element type of every tensor."""
        found = {t.name: t.data_type for t in self.graph.initializer}
        for value in (*self.graph.input, *self.graph.output, *self._values):
            found[value.name] = value.type.tensor_type.elem_type
        return found

    @functools.cached_property
    def _values(self) -> list[onnx.ValueInfoProto]:
        known = {value.name for value in self.graph.value_info} | set(self.outputs)
        if all(name in known for name in self.producer if name):
            return list(self.graph.value_info)
        return list(onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph.value_info)

    def is_float(self, name: str) -> bool:
        """Whether a tensor holds real numbers."""
        return self.types.get(name) in _FLOATS

    def is_external(self, name: str) -> bool:
        """Whether the values of an initializer lie in a file of their own."""
        return external_data_helper.uses_external_data(self.constants[name])

    def constant(self, name: str) -> NDArray[Any]:
        """The values of an initializer."""
        tensor = self.constants[name]
        if not self.is_external(name):
            return numpy_helper.to_array(tensor)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return self._bytes(tensor).view(dtype).reshape(tuple(tensor.dims))

    def tensor(self, name: str) -> TensorProto:
        """An initializer with its values in it, of whatever type."""
        tensor = self.constants[name]
        if not self.is_external(name):
            return tensor
        whole = TensorProto(name=name, data_type=tensor.data_type, dims=tensor.dims)
        whole.raw_data = self._bytes(tensor).tobytes()
        return whole

    def constant_bytes(self, name: str) -> int:
        """Bytes that the values of an initializer take."""
        return tensor_bytes(self.constants[name])

    def _bytes(self, tensor: TensorProto) -> NDArray[np.uint8]:
        # Read, not mapped: mapped pages stay in memory, in the end those of all weights.
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path, start = self.path.parent / entries["location"], int(entries.get("offset", 0))
        return np.fromfile(path, dtype=np.uint8, count=tensor_bytes(tensor), offset=start)

    @functools.cached_property
    def ancestors(self) -> list[int]:
        """For every node the set of nodes before it, as bits of an integer."""
        before: list[int] = []
        for node in self.nodes:
            bits = 0
            for name in node.input:
                made = self.producer.get(name)
                if made is not None:
                    bits |= before[made] | (1 << made)
            before.append(bits)
        return before


def corresponding_names(reference: Topology, other: Topology) -> dict[str, str]:
    """Names of ``other`` to names of ``reference``: the same model exported for another number of new tokens.

    Exporters number what they make, so only positions in topological order agree.

    Raises:
        CannotQuantise: The graphs are not the same sequence of operators; names the first node that differs.
    """
    if len(reference.nodes) != len(other.nodes) or reference.inputs != other.inputs:
        raise CannotQuantise(
            f"{other.path.name} has {len(other.nodes)} nodes and {len(other.inputs)} inputs, "
            f"{reference.path.name} {len(reference.nodes)} and {len(reference.inputs)}"
        )
    names = {name: name for name in reference.inputs}
    for index, (left, right) in enumerate(zip(reference.nodes, other.nodes, strict=True)):
        same = left.op_type == right.op_type and len(left.input) == len(right.input)
        if not (same and len(left.output) == len(right.output)):
            raise CannotQuantise(
                f"node {index}: {right.name} ({right.op_type}) of {other.path.name} is "
                f"{left.name} ({left.op_type}) in {reference.path.name}"
            )
        for mine, theirs in zip((*right.input, *right.output), (*left.input, *left.output), strict=True):
            known = names.setdefault(mine, theirs)
            if known != theirs and mine not in other.constants:
                raise CannotQuantise(f"node {index}: {mine} of {other.path.name} is both {known} and {theirs}")
    return names
