"""One graph for any number of new tokens, out of two for fixed numbers: for tool-chains that take ranges of shapes.

What differs between two graphs of one model is the shapes that reshapes have as constants. Shapes: A new tokens, P past
ones, C = A + P columns of attention.
"""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, ValueInfoProto

from octavo_edge.passes.editing import GraphEdit

__all__ = ["AXES", "CannotGeneralise", "for_any_length"]

AXES = ("new", "past", "columns")  # names of the sizes that are left open


class CannotGeneralise(ValueError):
    """The graphs differ by more than the shapes of what they move; the message names the node."""


def for_any_length(model: ModelProto, other: ModelProto, *, context_length: int) -> ModelProto:
    """The first graph with `new`, `past` and `columns` left open where the second one has other sizes.

    Raises:
        CannotGeneralise: A node differs in another way.
    """
    edit, reference = (GraphEdit(onnx.shape_inference.infer_shapes(graph, data_prop=True)) for graph in (model, other))
    if len(edit.nodes) != len(reference.nodes):
        raise CannotGeneralise(f"{len(edit.nodes)} nodes and {len(reference.nodes)}")
    for node, twin in zip(edit.nodes, reference.nodes, strict=True):
        if node.op_type != twin.op_type or len(node.input) != len(twin.input):
            raise CannotGeneralise(f"{node.name} ({node.op_type}) is {twin.name} ({twin.op_type})")
        for slot, (name, twins) in enumerate(zip(node.input, twin.input, strict=True)):
            values, others = edit.constant(name), reference.constant(twins)
            if values is None or others is None:
                continue
            if node.op_type == "Reshape" and slot == 1:
                node.input[1] = edit.add_constant(_open_shape(node, twin, values, others, edit, reference))
                del node.attribute[:]  # allowzero, by which a zero would be one
            elif values.shape != others.shape or not np.array_equal(values, others):
                raise CannotGeneralise(f"{node.name} ({node.op_type}) has other constants")
    finished = edit.finish()
    del finished.graph.value_info[:]
    for value, twin in zip(
        (*finished.graph.input, *finished.graph.output), (*other.graph.input, *other.graph.output), strict=True
    ):
        _open(value, twin, context_length)
    return finished


def _open_shape(
    node: NodeProto,
    twin: NodeProto,
    values: NDArray[np.int64],
    others: NDArray[np.int64],
    edit: GraphEdit,
    reference: GraphEdit,
) -> NDArray[np.int64]:
    """A size that is the input's at the same place is copied (0); one that differs between the graphs follows (-1)."""
    before, twins = edit.shape(node.input[0]), reference.shape(twin.input[0])
    after, after_twin = edit.shape(node.output[0]), reference.shape(twin.output[0])
    if before is None or twins is None or after is None or after_twin is None or len(after) != len(after_twin):
        raise CannotGeneralise(f"{node.name} (Reshape) has no known shapes")
    made = np.array(after, np.int64)
    for axis in range(len(after)):
        if axis < len(before) and before[axis] == after[axis] and twins[axis] == after_twin[axis]:
            made[axis] = 0
        elif after[axis] != after_twin[axis]:
            made[axis] = -1
    if np.count_nonzero(made == -1) > 1:
        raise CannotGeneralise(f"{node.name} (Reshape) has {values.tolist()} and {others.tolist()}")
    return made


def _open(value: ValueInfoProto, twin: ValueInfoProto, context_length: int) -> None:
    """Names for the sizes of an input or output that differ, and for the columns of the mask."""
    shape, others = (entry.type.tensor_type.shape.dim for entry in (value, twin))
    changed = [axis for axis in range(len(shape)) if shape[axis].dim_value != others[axis].dim_value]
    for axis in changed:
        shape[axis].dim_param = "past" if value.name.startswith("past_") else "new"
    if value.name == "attention_mask":
        assert shape[-1].dim_value == context_length
        shape[-1].dim_param = "columns"
