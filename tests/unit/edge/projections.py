"""Small quantised graphs as the export stage writes them: what is compiled for the HTP."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
CHANNELS, OUTPUTS, TOKENS = 64, 48, 5


def save(path, nodes, inputs, outputs, constants):
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        constants,
    )
    for index, entry in enumerate(graph.node):
        entry.name = entry.name or f"n{index}"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
    return path


def quantiser(name, scale, zero_point, constants, kind=TensorProto.UINT16):
    """Q and DQ of a tensor."""
    constants += [
        numpy_helper.from_array(np.array(scale, np.float32), f"{name}_scale"),
        helper.make_tensor(f"{name}_zero_point", kind, [], [zero_point]),
    ]
    rest = [f"{name}_scale", f"{name}_zero_point"]
    return [
        node("QuantizeLinear", [name, *rest], [f"{name}_q"]),
        node("DequantizeLinear", [f"{name}_q", *rest], [f"{name}_dq"]),
    ]


def conv(path, *, bits=8, block=0, bias=False, narrow=False, channels=CHANNELS, outputs=OUTPUTS, tokens=TOKENS):
    """A quantised 1x1 convolution of rows: what a projection is."""
    generator, constants = np.random.default_rng(1), []
    weight = generator.standard_normal((outputs, channels)).astype(np.float32)
    most = 2 ** (bits - 1) - 1
    nodes = quantiser("x", 8 / 65535, 32768, constants)
    nodes.append(node("Transpose", ["x_dq"], ["columns"], perm=[0, 3, 1, 2]))
    if block:
        largest = np.abs(weight.reshape(outputs, -1, block)).max(-1) / most
        channel = (largest.max(1) / 16).astype(np.float32)
        integers = np.clip(np.rint(largest / channel[:, None]), 1, 16).astype(np.uint8)
        scale = (integers * channel[:, None]).repeat(block, 1)
        constants += [
            numpy_helper.from_array(integers[..., None, None], "w_integers"),
            numpy_helper.from_array(channel, "w_channel"),
        ]
        nodes.append(node("DequantizeLinear", ["w_integers", "w_channel"], ["w_scale"], axis=0))
        attributes = {"axis": 1, "block_size": block}
    else:
        scale = (np.abs(weight).max(1, keepdims=True) / most).astype(np.float32)
        constants.append(numpy_helper.from_array(scale[:, 0], "w_scale"))
        attributes = {"axis": 0}
    values = np.clip(np.rint(weight / scale), -most - 1, most).astype(np.int8)
    if bits == 4:
        flat = values.reshape(-1).view(np.uint8) & 15
        packed = (flat[::2] | flat[1::2] << 4).astype(np.uint8).tobytes()
        constants.append(helper.make_tensor("w_q", TensorProto.INT4, [outputs, channels, 1, 1], packed, raw=True))
    else:
        constants.append(numpy_helper.from_array(values[..., None, None], "w_q"))
    nodes.append(node("DequantizeLinear", ["w_q", "w_scale"], ["w"], **attributes))
    inputs = ["columns", "w"]
    if bias:
        constants += [
            numpy_helper.from_array(generator.integers(-30000, 30000, outputs).astype(np.int32), "b_q"),
            numpy_helper.from_array((scale[:, 0] * np.float32(8 / 65535)).astype(np.float32), "b_scale"),
        ]
        nodes.append(node("DequantizeLinear", ["b_q", "b_scale"], ["b"], axis=0))
        inputs.append("b")
    nodes.append(node("Conv", inputs, ["product"], "conv"))
    kind, step, middle = (TensorProto.INT8, 80 / 255, 0) if narrow else (TensorProto.UINT16, 80 / 65535, 32768)
    nodes += quantiser("product", step, middle, constants, kind)
    nodes.append(node("Transpose", ["product_dq"], ["y"], perm=[0, 2, 3, 1]))
    shapes = {"x": [1, 1, tokens, channels]}, {"y": [1, 1, tokens, outputs]}
    return save(path, nodes, *shapes, constants)
