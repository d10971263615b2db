"""From a part's QDQ graph to one that the HTP's compiler takes whole, and computes the same.

What it needs, each seen to fail or to lose accuracy without:
- norms as one operator: written out they run in half precision, where squares of small activations vanish;
- weights in blocks as the second operand of a MatMul, never of a Conv;
- the zero point of 4-bit weights, without which their sign is lost;
- 16-bit keys and values as signed integers without a zero point, since others are cut to 8 bits before a MatMul;
- a bias in a step of its own, with 16 bits;
- one width of what a node reads and writes: changing it is a step of its own;
- no transpose that the compiler's front end could move between a Q and its DQ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from octavo_edge.graph.transposing import RewrittenWeights
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.passes.cleanup import remove_dead_code, remove_noops
from octavo_edge.passes.dense import convs_to_matmul, sink_transposes, zero_points_of_int4
from octavo_edge.passes.duplicates import merge_common_subexpressions
from octavo_edge.passes.editing import GraphEdit, attributes
from octavo_edge.passes.fusion import fuse_rms_norm
from octavo_edge.passes.layout import merge_reshapes, merge_transposes
from octavo_edge.passes.quantisers import (
    Encoding,
    Encodings,
    put_quantisers,
    spread_encodings,
    take_quantisers,
)

__all__ = ["lower", "weights_against"]

_SIMPLER: tuple[Callable[[ModelProto], ModelProto], ...] = (
    sink_transposes,
    merge_transposes,
    merge_reshapes,
    remove_noops,
    merge_common_subexpressions,
    remove_dead_code,
)
_MOST_ROUNDS = 16
# Of a weight in blocks: with 48 the simulator computes something else.
_BLOCKED_INPUTS = 32


def lower(source: Path, out: Path, weights: WeightsWriter) -> None:
    """Write the lowered graph beside the file of ``weights``, which graphs that share weights have in common."""
    rewritten = RewrittenWeights(source.parent, weights)
    model = _with_shapes(onnx.load(str(source), load_external_data=False))
    model, encodings = take_quantisers(model)
    model = _with_shapes(fuse_rms_norm(model))
    model = _with_shapes(convs_to_matmul(model, rewritten.transposed))
    encodings = spread_encodings(model, encodings)
    for _ in range(_MOST_ROUNDS):
        before = model.SerializeToString(deterministic=True)
        for run in _SIMPLER:
            model = _with_shapes(run(model))
            encodings = spread_encodings(model, encodings)
        if model.SerializeToString(deterministic=True) == before:
            break
    model, encodings = _biases(model, encodings, rewritten)
    model = zero_points_of_int4(_fence_transposes(model))
    encodings = spread_encodings(_with_shapes(model), encodings)
    model, encodings = _signed_operands(*_one_width(model, encodings))
    # What an Identity stood for is now a Q behind another encoding's DQ.
    model = remove_dead_code(remove_noops(put_quantisers(model, encodings)))
    rewritten.take(model)
    onnx.save(model, str(out))


def weights_against(path: Path) -> list[str]:
    """Reasons why the compiler would make another function of a part's weights, one for each."""
    edit = GraphEdit(onnx.load(str(path), load_external_data=False))
    reasons = []
    for node in edit.nodes:
        if (
            node.op_type == "DequantizeLinear"
            and "block_size" in attributes(node)
            and node.input[0] in edit.initialisers
        ):
            num_inputs = edit.initialisers[node.input[0]].dims[1]
            if num_inputs % _BLOCKED_INPUTS:
                reasons.append(
                    f"{node.input[0]}: {num_inputs} inputs; with blocks they are a multiple of {_BLOCKED_INPUTS}"
                )
    return reasons


def _with_shapes(model: ModelProto) -> ModelProto:
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model)


def _biases(model: ModelProto, encodings: Encodings, weights: RewrittenWeights) -> tuple[ModelProto, Encodings]:
    """Products that a bias is added to get an encoding of the sum's range less the bias; biases get 16 bits."""
    edit, by_tensor = GraphEdit(model), dict(encodings.by_tensor)
    producers = edit.producers()
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        product = producers.get(node.input[0]) if node.op_type == "Add" else None
        if product is not None and product.op_type == "MatMul" and node.output[0] in by_tensor:
            values = _constant_values(edit, producers.get(node.input[1]), node.input[1], weights)
            if values is not None and node.input[0] not in by_tensor:
                low, high = _range(by_tensor[node.output[0]])
                least, most = float(values.min()), float(values.max())
                by_tensor[node.input[0]] = _encoding(f"{node.input[0]}", low - most, high - least)
                name, scale, zero_point = f"{node.output[0]}/bias", *_encoding(f"{node.output[0]}/bias", least, most)
                edit.initialisers |= {scale.name: scale, zero_point.name: zero_point}
                integers = np.rint(values / numpy_helper.to_array(scale)) + int(numpy_helper.to_array(zero_point))
                edit.add_constant(np.clip(integers, 0, 65535).astype(np.uint16), name=f"{name}_q")
                inputs = [f"{name}_q", scale.name, zero_point.name]
                nodes.append(helper.make_node("DequantizeLinear", inputs, [name], f"{name}/dq"))
                node.input[1] = name
        nodes.append(node)
    edit.nodes = nodes
    return edit.finish(), replace(encodings, by_tensor=by_tensor)


def _constant_values(
    edit: GraphEdit, maker: NodeProto | None, name: str, weights: RewrittenWeights
) -> np.ndarray | None:
    """The floats of a bias: a constant, or 32-bit integers behind a dequantiser."""
    if name in edit.initialisers:
        return weights.values(edit.initialisers[name])
    if maker is None or maker.op_type != "DequantizeLinear" or maker.input[0] not in edit.initialisers:
        return None
    integers, scales = (weights.values(edit.initialisers[value]) for value in list(maker.input)[:2])
    return integers.astype(np.float32) * scales


def _one_width(model: ModelProto, encodings: Encodings) -> tuple[ModelProto, Encodings]:
    """Where a node reads 16 bits and writes 8: a Concat gets its inputs in 8 bits, any other writes 16 bits first.

    The grid of 16 bits is the one of 8 with 256 steps to each of its own, which the HTP rounds exactly, and halves up,
    as befits 16 bits that it made by rounding down; from 255 or 240 steps it is off by up to three of them. Against
    ONNX's rounding at once, and halves to even, one value in some 500 lands on the next step.
    """
    edit, by_tensor = GraphEdit(model), dict(encodings.by_tensor)
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        nodes.append(node)
        encoding = by_tensor.get(node.output[0])
        if encoding is None or encoding.zero_point.data_type not in (TensorProto.UINT8, TensorProto.INT8):
            continue
        wide = [slot for slot, name in enumerate(node.input) if _is_wide(by_tensor.get(name))]
        if not wide:
            continue
        if node.op_type == "Concat":
            nodes.pop()
            for slot in wide:
                narrow = f"{node.input[slot]}/narrow/{node.name}"
                by_tensor[narrow] = encoding
                nodes.append(helper.make_node("Identity", [node.input[slot]], [narrow], narrow))
                node.input[slot] = narrow
            nodes.append(node)
            continue
        result = node.output[0]
        node.output[0] = f"{result}/wide"
        scale, zero_point = (numpy_helper.to_array(tensor) for tensor in encoding)
        steps = int(zero_point) - np.iinfo(zero_point.dtype).min
        by_tensor[node.output[0]] = Encoding(
            numpy_helper.from_array(np.array(scale / 256, np.float32), f"{result}/wide_scale"),
            helper.make_tensor(f"{result}/wide_zero_point", TensorProto.UINT16, [], [steps * 256]),
        )
        nodes.append(helper.make_node("Identity", [node.output[0]], [result], f"{node.name}/narrow"))
    edit.nodes = nodes
    return edit.finish(), replace(encodings, by_tensor=by_tensor)


def _is_wide(encoding: Encoding | None) -> bool:
    return encoding is not None and encoding.zero_point.data_type in (TensorProto.UINT16, TensorProto.INT16)


def _signed_operands(model: ModelProto, encodings: Encodings) -> tuple[ModelProto, Encodings]:
    """A 16-bit second operand of a MatMul is quantised anew around zero: a bit less at most, where 8 would go."""
    edit, by_tensor = GraphEdit(model), dict(encodings.by_tensor)
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        encoding = by_tensor.get(node.input[1]) if node.op_type == "MatMul" else None
        if encoding is not None and encoding.zero_point.data_type == TensorProto.UINT16:
            signed = f"{node.input[1]}/signed"
            if signed not in by_tensor:  # heads of a group read the same keys
                most = max(map(abs, _range(encoding)))
                scale = numpy_helper.from_array(np.array(most / 32767, np.float32), f"{signed}_scale")
                zero_point = helper.make_tensor(f"{signed}_zero_point", TensorProto.INT16, [], [0])
                by_tensor[signed] = Encoding(scale, zero_point)
                nodes.append(helper.make_node("Identity", [node.input[1]], [signed], f"{node.name}/signed"))
            node.input[1] = signed
        nodes.append(node)
    edit.nodes = nodes
    return edit.finish(), replace(encodings, by_tensor=by_tensor)


def _fence_transposes(model: ModelProto) -> ModelProto:
    """What is transposed for several readers passes a Gather of its whole first axis, which has one entry.

    The runtime's front end moves transposes towards their readers, and where these are many it stops behind the Q: a
    transpose of bare integers, which the compiler refuses. It moves none past a Gather.
    """
    edit = GraphEdit(model)
    consumers = edit.consumers()
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        nodes.append(node)
        result = node.output[0]
        if node.op_type != "Transpose" or len(consumers[result]) < 2 or (edit.shape(result) or (0,))[0] != 1:
            continue
        node.output[0] = f"{result}/unfenced"
        index = edit.add_constant(np.array([0], np.int64))
        nodes.append(helper.make_node("Gather", [node.output[0], index], [result], f"{node.name}/fence", axis=0))
    edit.nodes = nodes
    return edit.finish()


def _range(encoding: Encoding) -> tuple[float, float]:
    scale, zero_point = float(numpy_helper.to_array(encoding.scale)), int(numpy_helper.to_array(encoding.zero_point))
    kind = numpy_helper.to_array(encoding.zero_point).dtype
    limits = np.iinfo(kind)
    return (limits.min - zero_point) * scale, (limits.max - zero_point) * scale


def _encoding(name: str, low: float, high: float) -> Encoding:
    """Unsigned 16 bits over a range and zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 65535) or np.float32(1)
    zero_point = int(np.clip(round(-low / float(scale)), 0, 65535))
    return Encoding(
        numpy_helper.from_array(np.array(scale, np.float32), f"{name}_scale"),
        helper.make_tensor(f"{name}_zero_point", TensorProto.UINT16, [], [zero_point]),
    )
