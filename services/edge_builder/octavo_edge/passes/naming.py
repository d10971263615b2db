"""Names that say where in the model a node is, the same in the graphs of one model whatever their number of tokens."""

from __future__ import annotations

import ast
from collections import Counter

from onnx import ModelProto, NodeProto

from octavo_edge.graph.summary import SCOPES
from octavo_edge.passes.editing import GraphEdit

__all__ = ["name_by_module"]


def name_by_module(model: ModelProto) -> ModelProto:
    """Nodes are called `module/Operator`, numbered within a module; values by the node that makes them.

    A constant is called by the node that reads it first. Inputs, outputs and parameters keep their names. What the
    exporter noted besides (stack traces, types of modules, paths) is dropped.
    """
    edit = GraphEdit(model)
    seen: Counter[str] = Counter()
    names: dict[str, str] = {}
    for node in edit.nodes:
        node.name = _numbered(f"{_scope(node)}/{node.op_type}".lstrip("/"), seen)
        for index, output in enumerate(node.output):
            if output and output not in edit.outputs:
                names[output] = node.name if len(node.output) == 1 else f"{node.name}.{index}"
        for index, value in enumerate(node.input):
            if value in edit.initialisers and value not in names and edit.constant(value) is not None:
                names[value] = f"{node.name}:{index}"
    _rename(edit, names)
    return _without_notes(edit.finish())


def _rename(edit: GraphEdit, names: dict[str, str]) -> None:
    for node in edit.nodes:
        for values in (node.input, node.output):
            for index, value in enumerate(values):
                values[index] = names.get(value, value)
    for old, tensor in list(edit.initialisers.items()):
        tensor.name = names.get(old, old)
    for info in edit.model.graph.value_info:
        info.name = names.get(info.name, info.name)


def _without_notes(model: ModelProto) -> ModelProto:
    graph = model.graph
    for message in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output, graph, model):
        del message.metadata_props[:]
        message.ClearField("doc_string")
    return model


def _scope(node: NodeProto) -> str:
    """The module that a node was traced in; a node that a pass made has the one of the node in whose place it is."""
    for entry in node.metadata_props:
        if entry.key == SCOPES:
            scopes = ast.literal_eval(entry.value)
            return scopes[-2] if len(scopes) > 1 else ""
    return ""


def _numbered(name: str, seen: Counter[str]) -> str:
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}_{seen[name] - 1}"
