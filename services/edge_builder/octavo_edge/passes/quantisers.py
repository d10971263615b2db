"""A QDQ graph without the quantisers of its activations, and the same put back: between the two, passes see a float
graph whose tensors have encodings. Dequantisers of constants stay, since they are part of a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, helper

from octavo_edge.passes.editing import GraphEdit

__all__ = ["Encoding", "Encodings", "put_quantisers", "spread_encodings", "take_quantisers"]

# What moves values and makes none: its input and output may have one encoding.
_MOVES = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Gather"})


class Encoding(NamedTuple):
    """Scale and zero point of one tensor, as the initialisers that hold them."""

    scale: TensorProto
    zero_point: TensorProto


@dataclass(frozen=True, slots=True, kw_only=True)
class Encodings:
    """Which tensors are quantised and how, and which are not."""

    by_tensor: Mapping[str, Encoding]
    floats: frozenset[str]  # tensors that had no quantiser when they were taken


def take_quantisers(model: ModelProto) -> tuple[ModelProto, Encodings]:
    """Let the readers of every Q and DQ in a row read what went into them; gives the pairs by that tensor's name.

    A pair stays where somebody else reads the tensor before it too: for them it is in full precision.
    """
    edit = GraphEdit(model)
    producers, consumers = edit.producers(), edit.consumers()
    found: dict[str, Encoding] = {}
    replaced: dict[str, str] = {}
    gone: list[NodeProto] = []
    for second in edit.nodes:
        if second.op_type != "DequantizeLinear" or len(second.input) < 3:
            continue
        first = producers.get(second.input[0])
        if first is None or first.op_type != "QuantizeLinear" or list(first.input[1:]) != list(second.input[1:]):
            continue
        before, after = first.input[0], second.output[0]
        alone = len(consumers[before]) == 1 and len(consumers[first.output[0]]) == 1 and before not in edit.outputs
        if not alone or (after in edit.outputs and before in edit.inputs):
            continue
        name = before
        if after in edit.outputs:
            maker = producers[before]
            maker.output[list(maker.output).index(before)] = name = after
        else:
            replaced[after] = before
        found[name] = Encoding(*(edit.initialisers[value] for value in first.input[1:3]))
        gone += [first, second]
    edit.redirect(replaced)
    edit.remove(gone)
    names = {name for node in edit.nodes for name in node.output} | edit.inputs
    return edit.finish(), Encodings(by_tensor=found, floats=frozenset(names - found.keys()))


def spread_encodings(model: ModelProto, encodings: Encodings) -> Encodings:
    """With those of tensors that a pass has made by moving others, or that are moved into others.

    Moving needs no arithmetic if what comes out has the encoding of what goes in.
    """
    result = dict(encodings.by_tensor)
    moves = [node for node in model.graph.node if node.op_type in _MOVES]
    for node in reversed(moves):
        if node.output[0] in result and node.input[0] not in encodings.floats:
            result.setdefault(node.input[0], result[node.output[0]])
    for node in moves:
        # Where it had none: values that are on a grid stay as they are when they are put on it again.
        if node.input[0] in result:
            result.setdefault(node.output[0], result[node.input[0]])
    return replace(encodings, by_tensor=result)


def put_quantisers(model: ModelProto, encodings: Encodings) -> ModelProto:
    """Put a Q and a DQ behind every tensor that has an encoding."""
    edit = GraphEdit(model)
    nodes: list[NodeProto] = []
    renamed: dict[str, str] = {}

    def put(name: str, raw: str) -> None:
        encoding = encodings.by_tensor.get(name)
        if encoding is None:
            return
        read_as = name if raw != name else f"{name}_dq"
        rest = [tensor.name for tensor in encoding]
        edit.initialisers.update((tensor.name, tensor) for tensor in encoding)
        nodes.append(helper.make_node("QuantizeLinear", [raw, *rest], [f"{name}_q"], f"{name}/q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *rest], [read_as], f"{name}/dq"))
        renamed[name] = read_as

    for value in edit.model.graph.input:
        put(value.name, value.name)
    for node in edit.nodes:
        for slot, name in enumerate(node.input):
            node.input[slot] = renamed.get(name, name)
        made = list(node.output)
        for slot, name in enumerate(made):
            if name in encodings.by_tensor and name in edit.outputs:
                node.output[slot] = f"{name}_raw"
        nodes.append(node)
        for slot, name in enumerate(made):
            put(name, node.output[slot])
    edit.nodes = nodes
    return edit.finish()
