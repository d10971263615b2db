"""Forms of a QDQ graph for tool-chains that keep integers in weights alone. Not part of any default: targets ask.

Bytes of weights stay where they are: a 1x1 convolution and a matrix product read the same ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from octavo_edge.graph.weights import values_of
from octavo_edge.passes.cleanup import remove_dead_code, remove_noops
from octavo_edge.passes.editing import GraphEdit, attributes
from octavo_edge.passes.layout import merge_reshapes, merge_transposes

__all__ = ["convs_to_gemms", "drop_activation_quantisers", "fold_dequantisers", "weights_only"]

_ROWS, _CHANNELS = [0, 2, 3, 1], [0, 3, 1, 2]  # [1, H, 1, A] to [1, 1, A, H], and back


def weights_only(model: ModelProto, folder: Path, *, linear: bool = True) -> ModelProto:
    """The graph with floating-point activations; weights of products stay integers behind DequantizeLinear.

    `folder` holds the external data. With `linear` 1x1 convolutions become products of matrices.
    """
    model = drop_activation_quantisers(model)
    model = fold_dequantisers(model, folder)
    if linear:
        model = convs_to_gemms(model)
        model = merge_transposes(model)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return remove_dead_code(merge_reshapes(remove_noops(model)))


def drop_activation_quantisers(model: ModelProto) -> ModelProto:
    """Activations without their Q and DQ: what is read is what was made."""
    edit = GraphEdit(model)
    producers, dropped = edit.producers(), {}
    for node in edit.nodes:
        if node.op_type == "DequantizeLinear":
            before = producers.get(node.input[0])
            if before is not None and before.op_type == "QuantizeLinear" and before.input[0] not in edit.initialisers:
                dropped[node.output[0]] = before.input[0]
    edit.bypass(dropped)
    return remove_dead_code(edit.finish())


def fold_dequantisers(model: ModelProto, folder: Path) -> ModelProto:
    """Dequantised constants as floats, but for the integers that a product multiplies by or rows are looked up in.

    Biases, weights of norms, factors, and the scales that LPBQ has as integers times a scale.
    """
    edit = GraphEdit(model)
    consumers, folded = edit.consumers(), []
    for node in edit.nodes:
        if node.op_type != "DequantizeLinear" or not all(name in edit.initialisers for name in node.input):
            continue
        if any(_keeps_integers(reader, node.output[0]) for reader in consumers[node.output[0]]):
            continue
        edit.add_constant(_dequantised(edit, node, folder), name=node.output[0])
        folded.append(node)
    edit.remove(folded)
    return edit.finish()


def convs_to_gemms(model: ModelProto) -> ModelProto:
    """1x1 convolutions over `[1, I, 1, A]` as products of `[A, I]` with the transposed weight `[O, I]`.

    A convolution that is none of these stays.
    """
    edit = GraphEdit(onnx.shape_inference.infer_shapes(model, data_prop=True))
    producers = edit.producers()
    nodes: list[NodeProto] = []
    for node in edit.nodes:
        if node.op_type != "Conv" or not _is_linear(edit, producers, node):
            nodes.append(node)
            continue
        weight = producers.get(node.input[1])
        for name in [node.input[1]] if weight is None else _constants_of(producers, weight):
            _flatten(edit.initialisers[name])
        nodes.extend(_gemm(edit, node))
    edit.nodes = nodes
    finished = edit.finish()
    # Weights have another shape now.
    del finished.graph.value_info[:]
    return finished


def _keeps_integers(reader: NodeProto, name: str) -> bool:
    if reader.op_type in ("Conv", "MatMul", "Gemm"):
        return reader.input[1] == name
    return reader.op_type == "Gather" and reader.input[0] == name


def _dequantised(edit: GraphEdit, node: NodeProto, folder: Path) -> NDArray[np.float32]:
    """What a DequantizeLinear of constants gives: per tensor or along an axis. Blocks are weights, which stay."""
    integers, scale, *rest = (values_of(edit.initialisers[name], folder) for name in node.input)
    assert not attributes(node).get("block_size"), f"{node.name} has blocks"
    axis = attributes(node).get("axis", 1)
    shape = [-1 if index == axis % max(integers.ndim, 1) else 1 for index in range(integers.ndim)]
    shaped = [value.reshape(shape) if value.ndim else value for value in (scale, *rest)]
    # Signed and wide enough for a difference of 32-bit integers.
    whole = integers.astype(np.int64) - (shaped[1].astype(np.int64) if rest else 0)
    return np.asarray(whole.astype(np.float32) * shaped[0], np.float32)


def _is_linear(edit: GraphEdit, producers: dict[str, NodeProto], node: NodeProto) -> bool:
    values, shape = attributes(node), edit.shape(node.input[0])
    if values.get("group", 1) != 1 or any(values.get("pads", [])) or values.get("auto_pad", b"NOTSET") != b"NOTSET":
        return False
    if any(size != 1 for key in ("strides", "dilations") for size in values.get(key, [])):
        return False
    weight = producers.get(node.input[1])
    names = [node.input[1]] if weight is None else _constants_of(producers, weight)
    if not names or any(name not in edit.initialisers for name in names):
        return False
    whole = edit.initialisers[names[0]].dims
    return len(whole) == 4 and whole[2:] == [1, 1] and shape is not None and shape[0] == 1 and shape[2] == 1


def _constants_of(producers: dict[str, NodeProto], node: NodeProto) -> list[str]:
    """The integers and scales of a dequantised weight, its scales' own integers too; empty if it is none."""
    if node.op_type != "DequantizeLinear":
        return []
    scale = producers.get(node.input[1])
    return [node.input[0], *([node.input[1]] if scale is None else _constants_of(producers, scale)), *node.input[2:]]


def _flatten(tensor: TensorProto) -> None:
    """`[O, I, 1, 1]` as `[O, I]`, in the same bytes."""
    if len(tensor.dims) == 4:
        del tensor.dims[2:]


def _gemm(edit: GraphEdit, conv: NodeProto) -> list[NodeProto]:
    shape = edit.shape(conv.output[0])
    assert shape is not None
    stem, source, result = conv.name or conv.output[0], conv.input[0], conv.output[0]
    num_inputs = (edit.shape(source) or (0, 0))[1]
    flat = edit.add_constant(np.array([-1, num_inputs], np.int64))
    rows = edit.add_constant(np.array([1, 1, -1, shape[1]], np.int64))
    product = helper.make_node("Gemm", [f"{stem}_matrix", *conv.input[1:]], [f"{stem}_product"], name=stem, transB=1)
    return [
        helper.make_node("Transpose", [source], [f"{stem}_rows"], name=f"{stem}/rows", perm=_ROWS),
        helper.make_node("Reshape", [f"{stem}_rows", flat], [f"{stem}_matrix"], name=f"{stem}/matrix"),
        product,
        helper.make_node("Reshape", [f"{stem}_product", rows], [f"{stem}_image"], name=f"{stem}/image"),
        helper.make_node("Transpose", [f"{stem}_image"], [result], name=f"{stem}/channels", perm=_CHANNELS),
    ]
