"""A graph in float16, but for the inside of norms: squares overflow there, and an epsilon of 1e-10 is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from octavo_edge.graph.weights import values_of
from octavo_edge.passes.editing import GraphEdit

__all__ = ["to_half"]

_AFTER_MEAN = ("Add", "Sqrt", "Reciprocal", "Mul")


def to_half(model: ModelProto, folder: Path) -> ModelProto:
    """Inputs, outputs, floats and scales as float16; integers stay. `folder` holds the external data."""
    edit = GraphEdit(model)
    inside = {id(node) for node in _inside_norms(edit)}
    made_inside = {name for node in edit.nodes if id(node) in inside for name in node.output}
    floats = {name for name, tensor in edit.initialisers.items() if tensor.data_type == TensorProto.FLOAT}
    kept: dict[str, TensorProto] = {}
    nodes: list[NodeProto] = []
    cast: dict[str, str] = {}
    for node in edit.nodes:
        wide = id(node) in inside
        for slot, name in enumerate(node.input):
            if wide and name in floats:
                node.input[slot] = f"{name}_float"
                kept[node.input[slot]] = numpy_helper.from_array(
                    values_of(edit.initialisers[name], folder), node.input[slot]
                )
            elif name and name not in edit.initialisers and wide is not (name in made_inside):
                if name not in cast:
                    cast[name] = f"{name}_{'float' if wide else 'half'}"
                    kind = TensorProto.FLOAT if wide else TensorProto.FLOAT16
                    nodes.append(helper.make_node("Cast", [name], [cast[name]], name=f"{cast[name]}/Cast", to=kind))
                node.input[slot] = cast[name]
        nodes.append(node)
    edit.nodes = nodes
    for name in floats:
        edit.initialisers[name] = numpy_helper.from_array(
            values_of(edit.initialisers[name], folder).astype(np.float16), name
        )
    edit.initialisers |= kept
    finished = edit.finish()
    del finished.graph.value_info[:]
    for value in (*finished.graph.input, *finished.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return finished


def _inside_norms(edit: GraphEdit) -> list[NodeProto]:
    """From the scaling down (if there is one) over square, mean and root to the product with the input."""
    producers, consumers = edit.producers(), edit.consumers()
    found: list[NodeProto] = []
    for mean in edit.nodes:
        square = producers.get(mean.input[0]) if mean.op_type == "ReduceMean" else None
        if square is None or square.op_type != "Pow":
            continue
        found += [square, mean]
        scaling = producers.get(square.input[0])
        if scaling is not None and scaling.op_type == "Mul" and scaling.input[1] in edit.initialisers:
            found.append(scaling)
        name = mean.output[0]
        for op in _AFTER_MEAN:
            (node,) = (reader for reader in consumers[name] if reader.op_type == op)
            found.append(node)
            name = node.output[0]
    return found
