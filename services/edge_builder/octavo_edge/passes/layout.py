"""Joins moves of data that follow each other."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper

from octavo_edge.passes.editing import GraphEdit, attributes

__all__ = ["merge_reshapes", "merge_transposes"]

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})


def merge_reshapes(model: ModelProto) -> ModelProto:
    """A reshape of a reshape is one, from the first's input; together with Squeeze, Unsqueeze and Flatten."""
    edit = GraphEdit(model)
    producers = edit.producers()
    for node in edit.nodes:
        if node.op_type not in _RESHAPES:
            continue
        shape, source = edit.shape(node.output[0]), node.input[0]
        while (before := producers.get(source)) is not None and before.op_type in _RESHAPES:
            source = before.input[0]
        if source == node.input[0] or shape is None:
            continue
        target = edit.add_constant(np.array(shape, np.int64))
        _become(node, "Reshape", [source, target])
    return edit.finish()


def merge_transposes(model: ModelProto) -> ModelProto:
    """A transpose of a transpose is one, or none where the second undoes the first."""
    edit = GraphEdit(model)
    producers, undone = edit.producers(), {}
    for node in edit.nodes:
        permutation = _permutation(node)
        if permutation is None:
            continue
        source = node.input[0]
        while (before := producers.get(source)) is not None and (first := _permutation(before)) is not None:
            permutation = [first[axis] for axis in permutation]
            source = before.input[0]
        if source == node.input[0]:
            continue
        if permutation == sorted(permutation):
            undone[node.output[0]] = source
        _become(node, "Transpose", [source])
        node.attribute.append(helper.make_attribute("perm", permutation))
    edit.bypass(undone)
    return edit.finish()


def _permutation(node: NodeProto) -> list[int] | None:
    if node.op_type != "Transpose":
        return None
    permutation = attributes(node).get("perm")
    return None if permutation is None else list(permutation)


def _become(node: NodeProto, op: str, inputs: list[str]) -> None:
    """Another operator in the node's place: its name, outputs and metadata stay."""
    node.op_type = op
    del node.input[:], node.attribute[:]
    node.input.extend(inputs)
