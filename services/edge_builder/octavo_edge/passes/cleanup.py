"""Takes out what has no effect."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto

from octavo_edge.passes.editing import GraphEdit, attributes

__all__ = ["drop_zero_bias", "remove_dead_code", "remove_noops"]


def remove_dead_code(model: ModelProto) -> ModelProto:
    """Nodes and initialisers that no output depends on."""
    edit = GraphEdit(model)
    wanted = set(edit.outputs)
    alive: list[NodeProto] = []
    for node in reversed(edit.nodes):
        if wanted & set(node.output):
            alive.append(node)
            wanted.update(node.input)
            # A branch reads values of the graph around it by name alone.
            for entry in node.attribute:
                for inner in (entry.g, *entry.graphs):
                    wanted.update(name for child in inner.node for name in child.input)
    edit.nodes = alive[::-1]
    edit.initialisers = {name: tensor for name, tensor in edit.initialisers.items() if name in wanted}
    return edit.finish()


def remove_noops(model: ModelProto) -> ModelProto:
    """Nodes that give their first input back: Identity, same shape, same type, times one, plus zero, all of a slice."""
    edit = GraphEdit(model)
    edit.bypass({node.output[0]: node.input[0] for node in edit.nodes if _is_noop(edit, node)})
    return edit.finish()


def drop_zero_bias(model: ModelProto) -> ModelProto:
    """Biases of convolutions that are all zeros."""
    edit = GraphEdit(model)
    for node in edit.nodes:
        if node.op_type == "Conv" and len(node.input) == 3:
            bias = edit.constant(node.input[2])
            if bias is not None and not bias.any():
                del node.input[2]
    return edit.finish()


def _is_noop(edit: GraphEdit, node: NodeProto) -> bool:
    if node.op_type == "Identity":
        return True
    if len(node.output) != 1:
        return False
    before, after = edit.shape(node.input[0]) if node.input else None, edit.shape(node.output[0])
    same_shape = before is not None and before == after
    match node.op_type:
        case "Reshape" | "Expand" | "Unsqueeze" | "Squeeze" | "Flatten":
            return same_shape
        case "Transpose":
            permutation = attributes(node).get("perm")
            return permutation is not None and list(permutation) == sorted(permutation)
        case "Cast":
            return edit.dtype(node.input[0]) == attributes(node)["to"]
        case "Concat":
            return len(node.input) == 1
        case "Slice":
            # The same shape with steps of one is all of it.
            steps = edit.constant(node.input[4]) if len(node.input) > 4 else np.ones(1)
            return same_shape and steps is not None and bool((steps == 1).all())
        case "Mul" | "Div":
            return same_shape and _is_all(edit, node.input[1], 1)
        case "Add" | "Sub":
            return same_shape and _is_all(edit, node.input[1], 0)
    return False


def _is_all(edit: GraphEdit, name: str, number: float) -> bool:
    """Exactly: a small epsilon is no zero."""
    value = edit.constant(name)
    return value is not None and bool((value == number).all())
