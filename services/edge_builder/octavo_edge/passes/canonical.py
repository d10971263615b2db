"""Writes the same thing in the one way that tool-chains know."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper

from octavo_edge.passes.editing import GraphEdit, attributes

__all__ = ["constant_second", "split_sequences"]

_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr"})


def constant_second(model: ModelProto) -> ModelProto:
    """The constant of a commutative operator as its second input.

    A Mul with the constant first makes the finalisation of QNN's graphs fail where it takes part in a fused norm.
    """
    edit = GraphEdit(model)
    for node in edit.nodes:
        if node.op_type in _COMMUTATIVE and len(node.input) == 2:
            first, second = node.input
            if edit.is_constant(first) and not edit.is_constant(second):
                node.input[0], node.input[1] = second, first
    return edit.finish()


def split_sequences(model: ModelProto) -> ModelProto:
    """A SplitToSequence whose readers each take one element by a constant index is a Split; no device has sequences.

    The readers become Identity nodes, which `remove_noops` takes out.
    """
    edit = GraphEdit(model)
    consumers = edit.consumers()
    for node in edit.nodes:
        if node.op_type != "SplitToSequence" or node.output[0] in edit.outputs:
            continue
        sizes, readers = _sizes(edit, node), consumers[node.output[0]]
        taken = [_index(edit, reader) for reader in readers]
        if sizes is None or None in taken:
            continue
        names = [f"{node.output[0]}.{index}" for index in range(len(sizes))]
        for reader, index in zip(readers, taken, strict=True):
            assert index is not None
            edit.describe(names[index], like=reader.output[0])
            reader.op_type = "Identity"
            reader.ClearField("input")
            reader.input.append(names[index])
        axis, source = attributes(node).get("axis", 0), node.input[0]
        node.op_type = "Split"
        del node.input[:], node.output[:], node.attribute[:]
        node.input.extend([source, edit.add_constant(np.array(sizes, np.int64))])
        node.output.extend(names)
        node.attribute.append(helper.make_attribute("axis", axis))
    return edit.finish()


def _sizes(edit: GraphEdit, node: NodeProto) -> list[int] | None:
    """Lengths of the elements along the axis; None where they are not known, or lose the axis."""
    values, shape = attributes(node), edit.shape(node.input[0])
    if shape is None:
        return None
    whole = shape[values.get("axis", 0)]
    if len(node.input) < 2:
        return [1] * whole if values.get("keepdims", 1) else None
    told = edit.constant(node.input[1])
    if told is None:
        return None
    if told.ndim:
        return [int(size) for size in told]
    size = int(told)
    return [min(size, whole - start) for start in range(0, whole, size)]


def _index(edit: GraphEdit, node: NodeProto) -> int | None:
    if node.op_type != "SequenceAt":
        return None
    value = edit.constant(node.input[1])
    return None if value is None or int(value) < 0 else int(value)
