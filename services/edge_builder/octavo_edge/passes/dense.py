"""1x1 convolutions as products of matrices, for targets that take no other form of some weights.

Shapes: A new tokens, I channels in, O channels out, B blocks of channels in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from octavo_edge.passes.editing import GraphEdit, attributes

__all__ = ["Transposed", "convs_to_matmul", "sink_transposes", "zero_points_of_int4"]

# Stores an initialiser of a convolution, [O, X, 1, 1], as [X, O] under another name.
Transposed = Callable[[TensorProto, str], TensorProto]

_TO_ROWS, _TO_CHANNELS = (0, 2, 3, 1), (0, 3, 1, 2)
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Sigmoid", "Tanh", "Relu", "Gelu", "Erf", "Sqrt", "Neg"})


def convs_to_matmul(model: ModelProto, transposed: Transposed) -> ModelProto:
    """A 1x1 Conv from [1, I, 1, A] to [1, O, 1, A] as a MatMul of [1, 1, A, I] by [I, O]; a bias is added behind.

    The transposes around it go away together with those that made channels of rows (`sink_transposes`,
    `merge_transposes`).
    """
    edit = GraphEdit(model)
    producers = edit.producers()
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        weight = _transposed_weight(edit, producers, node, transposed) if _is_plain(node) else None
        if weight is None:
            nodes.append(node)
            continue
        name, dequantisers = weight
        result = node.output[0]
        last, product, biased = f"{result}/rows", f"{result}/product", f"{result}/biased"
        nodes += [
            *dequantisers,
            helper.make_node("Transpose", [node.input[0]], [last], f"{node.name}/to_rows", perm=_TO_ROWS),
            helper.make_node("MatMul", [last, name], [product], node.name),
        ]
        if len(node.input) > 2:
            nodes.append(helper.make_node("Add", [product, node.input[2]], [biased], f"{node.name}/bias"))
        source = biased if len(node.input) > 2 else product
        nodes.append(helper.make_node("Transpose", [source], [result], f"{node.name}/to_channels", perm=_TO_CHANNELS))
    edit.nodes = nodes
    return edit.finish()


def sink_transposes(model: ModelProto) -> ModelProto:
    """A Transpose goes behind the elementwise nodes that read it, where all their inputs are transposed in one way.

    There it meets the next one, with which it can be merged.
    """
    edit = GraphEdit(model)
    producers, consumers = edit.producers(), edit.consumers()
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        nodes.append(node)
        if node.op_type not in _ELEMENTWISE or len(node.output) != 1:
            continue
        moves = [_sunk(edit, producers, consumers, name) for name in node.input]
        first = moves[0]
        if first is None or any(move is None or move[1] != first[1] for move in moves):
            continue
        result, inner = node.output[0], f"{node.output[0]}/untransposed"
        for slot, move in enumerate(moves):
            assert move is not None
            node.input[slot] = move[0]
        node.output[0] = inner
        behind = helper.make_node("Transpose", [inner], [result], f"{node.name}/transpose", perm=first[1])
        nodes.append(behind)
        producers[inner], producers[result] = node, behind
    edit.nodes = nodes
    return edit.finish()


def zero_points_of_int4(model: ModelProto) -> ModelProto:
    """A zero point, of zeros, for each dequantiser of 4-bit integers that has none."""
    edit = GraphEdit(model)
    scales = {node.output[0]: node.input[0] for node in edit.nodes if node.op_type == "DequantizeLinear"}
    for node in edit.nodes:
        if node.op_type != "DequantizeLinear" or len(node.input) > 2 or node.input[0] not in edit.initialisers:
            continue
        kind = edit.initialisers[node.input[0]].data_type
        scale = edit.initialisers.get(scales.get(node.input[1], node.input[1]))
        if kind not in (TensorProto.INT4, TensorProto.UINT4) or scale is None:
            continue
        name = f"{node.input[0]}_zero_point"
        count = int(np.prod(scale.dims))
        edit.initialisers[name] = helper.make_tensor(name, kind, list(scale.dims), bytes((count + 1) // 2), raw=True)
        node.input.append(name)
    return edit.finish()


def _sunk(
    edit: GraphEdit, producers: Mapping[str, NodeProto], consumers: Mapping[str, list[NodeProto]], name: str
) -> tuple[str, tuple[int, ...]] | None:
    """What a value is a transpose of, and how; None if it is none, or is needed as it is."""
    made = producers.get(name)
    if made is None or made.op_type != "Transpose" or name in edit.outputs:
        return None
    if any(reader.op_type not in _ELEMENTWISE for reader in consumers.get(name, [])):
        return None
    return made.input[0], tuple(attributes(made)["perm"])


def _is_plain(node: NodeProto) -> bool:
    if node.op_type != "Conv":
        return False
    values = attributes(node)
    ones = all(number == 1 for key in ("strides", "dilations") for number in values.get(key, ()))
    return ones and values.get("group", 1) == 1 and not any(values.get("pads", ()))


def _transposed_weight(
    edit: GraphEdit, producers: Mapping[str, NodeProto], conv: NodeProto, transposed: Transposed
) -> tuple[str, list[NodeProto]] | None:
    """The weight as [I, O]: its name, and the dequantisers that make it. None if it is no constant."""
    name = conv.input[1]
    made = producers.get(name)
    if name in edit.initialisers and _is_flat(edit, name):
        return _transposed_constant(edit, name, transposed), []
    if made is None or made.op_type != "DequantizeLinear" or not _is_flat(edit, made.input[0]):
        return None
    before: list[NodeProto] = []
    scale, scale_maker = made.input[1], producers.get(made.input[1])
    blocked = attributes(made).get("block_size", 0)
    if scale_maker is not None:  # scales of blocks are integers times the channel's own scale
        integers = _transposed_constant(edit, scale_maker.input[0], transposed)
        scale = f"{scale}/transposed"
        inputs = [integers, *list(scale_maker.input)[1:]]
        before.append(helper.make_node("DequantizeLinear", inputs, [scale], f"{scale_maker.name}/transposed", axis=1))
    elif blocked:
        scale = _transposed_constant(edit, scale, transposed)
    zero_point = [_transposed_constant(edit, value, transposed) if blocked else value for value in list(made.input)[2:]]
    values = _transposed_constant(edit, made.input[0], transposed)
    kept = {"block_size": blocked} if blocked else {}
    inputs, result = [values, scale, *zero_point], f"{name}/transposed"
    axis = 0 if blocked else 1
    dequantiser = helper.make_node("DequantizeLinear", inputs, [result], f"{made.name}/transposed", axis=axis, **kept)
    return result, [*before, dequantiser]


def _is_flat(edit: GraphEdit, name: str) -> bool:
    tensor = edit.initialisers.get(name)
    return tensor is not None and list(tensor.dims)[2:] == [1, 1]


def _transposed_constant(edit: GraphEdit, name: str, transposed: Transposed) -> str:
    result = f"{name}/transposed"
    if result not in edit.initialisers:
        edit.initialisers[result] = transposed(edit.initialisers[name], result)
    return result
