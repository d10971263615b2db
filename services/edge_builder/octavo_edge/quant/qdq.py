"""Writes graphs in QDQ form: integers of weights behind DequantizeLinear, activations between Q and DQ.

All graphs of a model get the integers and encodings of the one that was calibrated and point at one data file, where
equal bytes lie once: what a device shares between graphs, it finds by content. Tensors inside keep their names; the
quantised form of a tensor ``x`` is read as ``x_dq``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from octavo_edge.graph.weights import WeightsWriter, point_at
from octavo_edge.quant.encodings import Lpbq, ParamEncoding, PerBlock, PerChannel, PerTensor
from octavo_edge.quant.errors import CannotQuantise
from octavo_edge.quant.plan import Quantised, QuantisedWeight
from octavo_edge.quant.topology import Topology

ELEMENT_TYPES = {
    "int4": TensorProto.INT4,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}
_INLINE_BYTES = 1024  # smaller tensors stay in the graph's own file
_LEAST_OPSET = 21  # 16-bit and 4-bit types of Q and DQ, and blocks


def write_qdq(
    graph: Topology, quantised: Quantised, names: Mapping[str, str], path: Path, weights: WeightsWriter
) -> None:
    """Write one graph; ``names`` are the calibrated graph's names of its tensors.

    Raises:
        CannotQuantise: The graph's opset has no 16-bit or 4-bit quantisers.
    """
    opset = next(o.version for o in graph.model.opset_import if o.domain in ("", "ai.onnx"))
    if opset < _LEAST_OPSET:
        raise CannotQuantise(f"{graph.path.name} is of opset {opset}; quantised graphs need {_LEAST_OPSET}")
    onnx.save(_Writer(graph, quantised, names, weights).model(), path)


class _Writer:
    def __init__(self, graph: Topology, quantised: Quantised, names: Mapping[str, str], weights: WeightsWriter) -> None:
        self._graph, self._quantised, self._names, self._weights = graph, quantised, names, weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._renamed: dict[str, str] = {}  # readers of a tensor read this instead
        # Dequantisers of a constant, until its first reader: runs by pieces must not hold all weights as floats.
        self._waiting: dict[str, list[onnx.NodeProto]] = {}

    def model(self) -> onnx.ModelProto:
        graph = self._graph
        for name in graph.constants:
            self._constant(name)
        for name in graph.inputs:
            self._activation(name, raw=name)
        for node in graph.nodes:
            self._node(node)
        result = onnx.ModelProto()
        result.CopyFrom(graph.model)
        del result.graph.node[:], result.graph.initializer[:], result.graph.value_info[:]
        result.graph.node.extend(self._nodes)
        result.graph.initializer.extend(self._constants)
        return result

    def _node(self, node: onnx.NodeProto) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for slot, name in enumerate(node.input):
            self._nodes.extend(self._waiting.pop(name, ()))
            copy.input[slot] = self._renamed.get(name, name)
        outputs = [name for name in node.output if self._encoding(name) is not None]
        for slot, name in enumerate(node.output):
            if name in outputs and name in self._graph.outputs:
                copy.output[slot] = f"{name}_raw"
        self._bias(node, copy)
        self._nodes.append(copy)
        for name in outputs:
            self._activation(name, raw=f"{name}_raw" if name in self._graph.outputs else name)

    def _encoding(self, name: str) -> PerTensor | None:
        return self._quantised.activations.get(self._names.get(name, ""))

    def _activation(self, name: str, *, raw: str) -> None:
        encoding = self._encoding(name)
        if encoding is None:
            return
        read_as = name if raw != name else f"{name}_dq"
        scale, zero_point = self._scalars(name, encoding)
        self._nodes.append(helper.make_node("QuantizeLinear", [raw, scale, zero_point], [f"{name}_q"], f"{name}/q"))
        inputs = [f"{name}_q", scale, zero_point]
        self._nodes.append(helper.make_node("DequantizeLinear", inputs, [read_as], f"{name}/dq"))
        self._renamed[name] = read_as

    def _constant(self, name: str) -> None:
        weight = self._quantised.weights.get(self._names.get(name, ""))
        if weight is None:
            values = self._graph.constant(name)
            self._store(
                name, self._graph.constants[name].data_type, values.shape, np.ascontiguousarray(values).tobytes()
            )
            return
        self._store(f"{name}_q", ELEMENT_TYPES[weight.encoding.grid.name], weight.integers.shape, packed_bytes(weight))
        nodes = self._dequantiser(name, weight.encoding, weight.integers.ndim)
        self._waiting[name] = nodes
        self._renamed[name] = nodes[-1].output[0]

    def _dequantiser(self, name: str, encoding: ParamEncoding, rank: int) -> list[onnx.NodeProto]:
        integers, read_as = f"{name}_q", [f"{name}_dq"]
        before: list[onnx.NodeProto] = []
        attributes: dict[str, Any] = {}
        match encoding:
            case PerTensor():
                rest = self._scalars(name, encoding)
            case PerChannel():
                rest = (self._array(f"{name}_scale", encoding.scales),)
                attributes = {"axis": encoding.axis}
            case PerBlock():
                rest = (self._array(f"{name}_scale", _blocks(encoding.scales, encoding.axis, rank)),)
                attributes = {"axis": encoding.axis, "block_size": encoding.block_size}
            case Lpbq():
                before = [self._lpbq_scale(name, encoding, rank)]
                rest = (before[0].output[0],)
                attributes = {"axis": encoding.axis, "block_size": encoding.block_size}
        return [*before, helper.make_node("DequantizeLinear", [integers, *rest], read_as, f"{name}/dq", **attributes)]

    def _lpbq_scale(self, name: str, encoding: Lpbq, rank: int) -> onnx.NodeProto:
        """Integers of the blocks times the channel's scale: a dequantiser of scales."""
        integer = self._array(f"{name}_block_scale", _blocks(encoding.int_scales, encoding.axis, rank))
        channel = self._array(f"{name}_channel_scale", encoding.channel_scales)
        axis = 1 - encoding.axis
        inputs, outputs = [integer, channel], [f"{name}_scale"]
        return helper.make_node("DequantizeLinear", inputs, outputs, f"{name}/scale", axis=axis)

    def _bias(self, node: onnx.NodeProto, copy: onnx.NodeProto) -> None:
        """A bias becomes 32-bit integers at the scale of the sums that it is added to."""
        if node.op_type != "Conv" or len(node.input) < 3 or node.input[2] not in self._graph.constants:
            return
        source = self._encoding(node.input[0])
        weight = self._quantised.weights.get(self._names.get(node.input[1], ""))
        if source is None or weight is None or not isinstance(weight.encoding, PerChannel):
            return
        scales = (np.float32(source.scale) * weight.encoding.scales).astype(np.float32)
        bias = self._graph.constant(node.input[2])
        # A bias of 0 may have a scale that is 0 as a float32.
        exact = bias.astype(np.float64)
        whole = np.rint(np.divide(exact, scales, out=np.zeros_like(exact), where=exact != 0))
        assert np.abs(whole).max() <= np.iinfo(np.int32).max, f"node {node.name}: a bias is clipped; see quant/biases"
        integers = whole.astype(np.int32)
        stem = f"{node.output[0]}_bias"
        inputs = [self._array(f"{stem}_q", integers), self._array(f"{stem}_scale", scales)]
        self._nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{stem}_dq"], f"{stem}/dq", axis=0))
        copy.input[2] = f"{stem}_dq"

    def _scalars(self, name: str, encoding: PerTensor) -> tuple[str, str]:
        kind = ELEMENT_TYPES[encoding.grid.name]
        self._constants.append(numpy_helper.from_array(np.array(encoding.scale, np.float32), f"{name}_scale"))
        self._constants.append(helper.make_tensor(f"{name}_zero_point", kind, [], [encoding.zero_point]))
        return f"{name}_scale", f"{name}_zero_point"

    def _array(self, name: str, values: NDArray[Any]) -> str:
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self._store(name, kind, values.shape, np.ascontiguousarray(values).tobytes())
        return name

    def _store(self, name: str, kind: int, shape: tuple[int, ...], data: bytes) -> None:
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        if len(data) <= _INLINE_BYTES:
            tensor.raw_data = data
        else:
            point_at(tensor, self._weights.put(np.frombuffer(data, dtype=np.uint8)))
        self._constants.append(tensor)


def packed_bytes(weight: QuantisedWeight) -> bytes:
    """Integers as ONNX stores them: two of 4 bits a byte, the first in the low half."""
    integers = np.ascontiguousarray(weight.integers)
    if weight.encoding.grid.bits != 4:
        return integers.tobytes()
    flat = integers.reshape(-1).view(np.uint8) & 0xF
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return (flat[::2] | flat[1::2] << 4).astype(np.uint8).tobytes()


def _blocks(scales_OB: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    matrix = scales_OB if axis == 1 else scales_OB.T
    return np.ascontiguousarray(matrix.reshape(*matrix.shape, *([1] * (rank - 2))))
