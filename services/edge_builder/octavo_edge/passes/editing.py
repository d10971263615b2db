"""A copy of a graph while one pass changes it: who makes a value, who reads it, what is known of it.

Weights in external data are opaque here: they have a place and a shape, no values. Knows no pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["GraphEdit", "attributes"]


class GraphEdit:
    """Nodes in topological order, changed in place; `finish` gives the model."""

    def __init__(self, model: ModelProto) -> None:
        self.model = ModelProto()
        self.model.CopyFrom(model)
        graph = self.model.graph
        self.nodes: list[NodeProto] = list(graph.node)
        self.initialisers: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.outputs = frozenset(value.name for value in graph.output)
        self.inputs = frozenset(value.name for value in graph.input)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, int] = {}
        for value in (*graph.value_info, *graph.input, *graph.output):
            tensor = value.type.tensor_type
            self._types[value.name] = tensor.elem_type
            if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                self._shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
        for name, tensor in self.initialisers.items():
            self._shapes[name], self._types[name] = tuple(tensor.dims), tensor.data_type
        self._new_names = 0

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The static shape of a value, where it is known."""
        return self._shapes.get(name)

    def dtype(self, name: str) -> int | None:
        """The TensorProto type of a value, where it is known."""
        return self._types.get(name) or None

    def constant(self, name: str) -> NDArray[Any] | None:
        """The values of an initialiser that is stored in the graph itself; None for all else."""
        tensor = self.initialisers.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor)

    def is_constant(self, name: str) -> bool:
        """Whether a value is an initialiser, wherever it is stored."""
        return name in self.initialisers

    def add_constant(self, values: NDArray[Any], *, name: str | None = None) -> str:
        """Store values in the graph; gives their name."""
        if name is None:
            while (name := f"constant_{self._new_names}") in self._types:
                self._new_names += 1
        self.initialisers[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)
        self._shapes[name], self._types[name] = values.shape, self.initialisers[name].data_type
        return name

    def producers(self) -> dict[str, NodeProto]:
        """Node by the values that it makes."""
        return {name: node for node in self.nodes for name in node.output if name}

    def consumers(self) -> dict[str, list[NodeProto]]:
        """Nodes by the values that they read; a node that reads one twice is there twice."""
        result: defaultdict[str, list[NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                if name:
                    result[name].append(node)
        return result

    def redirect(self, replacements: Mapping[str, str]) -> None:
        """Let the readers of each key read its value instead; chains are followed. The graph's outputs keep names."""
        for node in self.nodes:
            for index, name in enumerate(node.input):
                target = name
                while target in replacements:
                    target = replacements[target]
                if target != name:
                    node.input[index] = target

    def remove(self, nodes: Iterable[NodeProto]) -> None:
        """Take nodes out; nobody may read what they made."""
        gone = {id(node) for node in nodes}
        self.nodes = [node for node in self.nodes if id(node) not in gone]

    def bypass(self, replacements: Mapping[str, str]) -> None:
        """Take out the nodes that make the keys (in topological order), whose readers get the values instead.

        Where a key is an output of the graph, the node that makes the value takes over the key's name; if that is not
        possible (the value is an input, an initialiser or an output too) the node stays.
        """
        producers, gone = self.producers(), []
        forward: dict[str, str] = {}
        for old, new in replacements.items():
            while new in forward:
                new = forward[new]
            if old not in self.outputs:
                forward[old] = new
            elif (source := producers.get(new)) is not None and new not in self.outputs:
                source.output[list(source.output).index(new)] = old
                forward[new] = old
            else:
                continue
            gone.append(producers[old])
            if new in producers and old in self.outputs:
                producers[old] = producers[new]
        self.redirect(forward)
        self.remove(gone)

    def describe(self, name: str, *, like: str) -> None:
        """Say that a new value has the type and shape of another."""
        for info in (*self.model.graph.value_info, *self.model.graph.output):
            if info.name == like:
                self.model.graph.value_info.add().CopyFrom(info)
                self.model.graph.value_info[-1].name = name
                self._types[name] = self._types[like]
                if like in self._shapes:
                    self._shapes[name] = self._shapes[like]
                return

    def finish(self) -> ModelProto:
        """The changed model. Values that nothing makes any more lose their type information."""
        graph = self.model.graph
        # Kept as copies: the fields below are cleared, and the nodes live in them.
        nodes = [_copy(node) for node in self.nodes]
        tensors = [_copy(tensor) for tensor in self.initialisers.values()]
        alive = {name for node in nodes for name in node.output} - self.outputs
        infos = [_copy(info) for info in graph.value_info if info.name in alive]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.initializer.extend(tensors)
        graph.value_info.extend(infos)
        return self.model


def attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes of a node by name, as Python and NumPy values."""
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def _copy(message: Any) -> Any:
    fresh = type(message)()
    fresh.CopyFrom(message)
    return fresh
