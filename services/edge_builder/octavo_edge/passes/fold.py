"""Computes once what depends on no input."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

from octavo_edge.passes.editing import GraphEdit

__all__ = ["fold_constants"]

# Values longer than this stay computed: a folded constant is stored in the graph's own file.
_MAX_BYTES = 8 << 20


def fold_constants(model: ModelProto) -> ModelProto:
    """Constant nodes, shapes of values whose shape is static, and every node all of whose inputs are constants.

    Weights in external data are no constants here: what is computed of them would be stored a second time.
    """
    edit = GraphEdit(model)
    foldable, known = _foldable(edit)
    if not foldable:
        return edit.finish()
    folded = {id(node) for node in foldable}
    rest = [node for node in edit.nodes if id(node) not in folded]
    wanted = {name for node in rest for name in node.input} | edit.outputs
    made = [name for node in foldable for name in node.output if name in wanted]
    values = dict(zip(made, _evaluate(edit, foldable, known, made), strict=True))
    computed = {name for name, value in values.items() if value.nbytes > _MAX_BYTES or name in edit.outputs}
    for name in made:
        if name not in computed:
            edit.add_constant(values[name], name=name)
    needed = _needed(foldable, computed)
    edit.nodes = [node for node in edit.nodes if id(node) not in folded or id(node) in needed]
    return edit.finish()


def _foldable(edit: GraphEdit) -> tuple[list[NodeProto], dict[str, np.ndarray]]:
    """Nodes that depend on constants alone, in order, and stand-ins for inputs whose type or shape alone is read."""
    constant = {name for name in edit.initialisers if edit.constant(name) is not None}
    stand_ins: dict[str, np.ndarray] = {}
    nodes = []
    for node in edit.nodes:
        if any(entry.type in (entry.GRAPH, entry.GRAPHS) for entry in node.attribute):
            continue
        inputs = [name for name in node.input if name]
        described = _described(node, inputs)
        others = [name for name in inputs if name not in constant and name != described]
        if others or _is_no_constant(node):
            continue
        if described is not None and described not in constant:
            shape, dtype = edit.shape(described), edit.dtype(described)
            if shape is None or dtype is None:
                continue
            # A view of one number: of any shape, without memory.
            stand_ins[described] = np.broadcast_to(np.zeros((), helper.tensor_dtype_to_np_dtype(dtype)), shape)
        nodes.append(node)
        constant.update(node.output)
    return nodes, stand_ins


def _described(node: NodeProto, inputs: list[str]) -> str | None:
    """The input of which only type or shape is read."""
    match node.op_type:
        case "Shape" | "Size":
            return inputs[0]
        case "CastLike":
            return inputs[1]
    return None


def _is_no_constant(node: NodeProto) -> bool:
    """Whether the result is no tensor that could be stored, or another one at every run."""
    return "Sequence" in node.op_type or node.op_type.startswith("Random")


def _evaluate(
    edit: GraphEdit, nodes: list[NodeProto], stand_ins: dict[str, np.ndarray], wanted: list[str]
) -> list[np.ndarray]:
    """One run of ONNX's reference implementation over all of them."""
    read = {name for node in nodes for name in node.input}
    initialisers = [tensor for name, tensor in edit.initialisers.items() if name in read and name not in stand_ins]
    graph = helper.make_graph(
        nodes,
        "constants",
        [_described_value(name, value) for name, value in stand_ins.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in wanted],
        initialisers,
    )
    small = helper.make_model(graph, opset_imports=edit.model.opset_import, ir_version=edit.model.ir_version)
    result = ReferenceEvaluator(small).run(None, dict(stand_ins))
    return [np.asarray(value) for value in result]


def _described_value(name: str, value: np.ndarray) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _needed(nodes: list[NodeProto], names: set[str]) -> set[int]:
    """Ids of the nodes that the named values are computed by."""
    wanted, found = set(names), set()
    for node in reversed(nodes):
        if wanted & set(node.output):
            found.add(id(node))
            wanted.update(node.input)
    return found
