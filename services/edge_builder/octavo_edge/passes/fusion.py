"""Joins operators into one that some targets have a kernel for. Not part of the default passes: others lack it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, helper

from octavo_edge.passes.editing import GraphEdit

__all__ = ["fuse_rms_norm"]

_OPSET, _IR_VERSION = 23, 11  # the first with RMSNormalization


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """A norm over the last axis, written out: the nodes from the scaling down to the product with the weight."""

    source: str
    weight: str
    epsilon: float
    last: NodeProto


def fuse_rms_norm(model: ModelProto) -> ModelProto:
    """Norms written out as RMSNormalization, which is of opset 23.

    The scaling down before the square goes too: a kernel of its own accumulates in float32. What the norm was made of
    is left to `remove_dead_code`.
    """
    edit = GraphEdit(model)
    producers, fused = edit.producers(), False
    for node in edit.nodes:
        norm = _norm(edit, producers, node)
        if norm is None:
            continue
        fused = True
        norm.last.op_type = "RMSNormalization"
        del norm.last.input[:]
        norm.last.input.extend([norm.source, norm.weight])
        for name, value in (("axis", -1), ("epsilon", norm.epsilon), ("stash_type", 1)):
            norm.last.attribute.append(helper.make_attribute(name, value))
    if fused:
        edit.model.ir_version = max(edit.model.ir_version, _IR_VERSION)
        for entry in edit.model.opset_import:
            if entry.domain in ("", "ai.onnx"):
                entry.version = max(entry.version, _OPSET)
    return edit.finish()


def _norm(edit: GraphEdit, producers: Mapping[str, NodeProto], last: NodeProto) -> _Norm | None:
    """The norm whose last node this is: x, s = x * c, s / sqrt(mean(s^2) + e) * weight; None if it is none."""
    if last.op_type != "Mul" or len(edit.shape(last.input[1]) or ()) != 1:
        return None
    if not edit.is_constant(last.input[1]) and not _is_weight(edit, producers, last.input[1]):
        return None
    product = _made_by(producers, last.input[0], "Mul")
    chain = product and _chain(producers, product.input[1], ("Reciprocal", "Sqrt", "Add", "ReduceMean", "Pow"))
    if product is None or not chain:
        return None
    _, _, add, mean, power = chain
    small = product.input[0]
    epsilon, axes = _number(edit, add.input[1]), edit.constant(mean.input[1]) if len(mean.input) > 1 else None
    rank = len(edit.shape(small) or ())
    if power.input[0] != small or _number(edit, power.input[1]) != 2 or epsilon is None:
        return None
    if axes is None or [int(axis) % rank for axis in axes.reshape(-1)] != [rank - 1]:
        return None
    scaling = _made_by(producers, small, "Mul")
    scale = None if scaling is None else _number(edit, scaling.input[1])
    if scaling is None or scale is None:
        return _Norm(source=small, weight=last.input[1], epsilon=epsilon, last=last)
    return _Norm(source=scaling.input[0], weight=last.input[1], epsilon=epsilon / scale**2, last=last)


def _is_weight(edit: GraphEdit, producers: Mapping[str, NodeProto], name: str) -> bool:
    node = _made_by(producers, name, "DequantizeLinear")
    return node is not None and edit.is_constant(node.input[0])


def _chain(producers: Mapping[str, NodeProto], name: str, ops: tuple[str, ...]) -> list[NodeProto]:
    """The nodes of these operators, each of which reads the next one's result first; empty if it is another chain."""
    found = []
    for op in ops:
        node = _made_by(producers, name, op)
        if node is None:
            return []
        found.append(node)
        name = node.input[0]
    return found


def _made_by(producers: Mapping[str, NodeProto], name: str, op: str) -> NodeProto | None:
    node = producers.get(name)
    return node if node is not None and node.op_type == op else None


def _number(edit: GraphEdit, name: str) -> float | None:
    value = edit.constant(name)
    return float(np.reshape(value, -1)[0]) if value is not None and value.size == 1 else None
