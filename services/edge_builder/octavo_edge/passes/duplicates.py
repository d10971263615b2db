"""Keeps one of what is there more than once."""

from __future__ import annotations

from collections.abc import Hashable

from onnx import ModelProto, NodeProto, TensorProto

from octavo_edge.passes.editing import GraphEdit

__all__ = ["merge_common_subexpressions", "merge_duplicate_initialisers"]

_UNLIKE_ITSELF = ("Random", "Multinomial", "Bernoulli", "Sequence")


def merge_duplicate_initialisers(model: ModelProto) -> ModelProto:
    """Initialisers of the same type, shape and bytes, or at the same place of the external data: the first stays."""
    edit = GraphEdit(model)
    first: dict[Hashable, str] = {}
    doubles = {}
    for name, tensor in edit.initialisers.items():
        kept = first.setdefault(_content(tensor), name)
        if kept != name and name not in edit.outputs:
            doubles[name] = kept
    edit.redirect(doubles)
    edit.initialisers = {name: tensor for name, tensor in edit.initialisers.items() if name not in doubles}
    return edit.finish()


def merge_common_subexpressions(model: ModelProto) -> ModelProto:
    """Nodes of the same operator, attributes and inputs are one; those that make outputs of the graph stay."""
    edit = GraphEdit(model)
    first: dict[Hashable, NodeProto] = {}
    replaced: dict[str, str] = {}
    gone = []
    for node in edit.nodes:
        # Inputs first: two chains that are equal become one from their beginnings on.
        for index, name in enumerate(node.input):
            node.input[index] = replaced.get(name, name)
        if any(word in node.op_type for word in _UNLIKE_ITSELF) or edit.outputs & set(node.output):
            continue
        kept = first.setdefault(_expression(node), node)
        if kept is not node:
            replaced |= dict(zip(node.output, kept.output, strict=True))
            gone.append(node)
    edit.remove(gone)
    return edit.finish()


def _content(tensor: TensorProto) -> Hashable:
    kind = (tensor.data_type, tuple(tensor.dims))
    if tensor.data_location == TensorProto.EXTERNAL:
        place = {entry.key: entry.value for entry in tensor.external_data}
        return kind, place["location"], place.get("offset", "0"), place.get("length", "")
    plain = TensorProto()
    plain.CopyFrom(tensor)
    plain.ClearField("name")
    plain.ClearField("metadata_props")
    plain.ClearField("doc_string")
    return kind, plain.SerializeToString(deterministic=True)


def _expression(node: NodeProto) -> Hashable:
    entries = sorted(entry.SerializeToString(deterministic=True) for entry in node.attribute)
    return node.domain, node.op_type, tuple(node.input), tuple(entries), len(node.output)
