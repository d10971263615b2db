"""Reads a decoder's parameters out of its graph in QDQ form: integers with their encodings, by the module's names.

Which parameter a constant is, the node that reads it tells: nodes are called after the module that they come from, and
constants with equal values may have become one. Keys are those of the adapted decoder's state: ``norm.weight``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from octavo_edge.graph.weights import values_of
from octavo_edge.quant.encodings import Lpbq, ParamEncoding, PerBlock, PerChannel, PerTensor
from octavo_edge.quant.grid import GRIDS, Floats, IntGrid
from octavo_edge.quant.plan import QuantisedWeight

__all__ = ["Parameter", "floats", "read_parameters"]

Parameter = QuantisedWeight | NDArray[np.float32]


def floats(parameter: Parameter) -> Floats:
    """What a parameter stands for."""
    return parameter.floats() if isinstance(parameter, QuantisedWeight) else parameter


def read_parameters(path: Path) -> dict[str, Parameter]:
    """All parameters of one graph; biases as floats."""
    reader = _Reader(onnx.load(str(path), load_external_data=False), path.parent)
    found: dict[str, Parameter] = {}
    for node in reader.model.graph.node:
        module = node.name.rsplit("/", 1)[0]
        match node.op_type:
            case "Conv" | "Gemm":
                slots = {"weight": 1, "bias": 2}
            case "Gather":
                slots = {"weight": 0}
            case "Mul" | "RMSNormalization":
                slots = {"weight": 1}
            case _:
                continue
        for name, slot in slots.items():
            value = reader.constant(node.input[slot]) if slot < len(node.input) else None
            if value is None or (node.op_type == "Mul" and not _is_norm_weight(value)):
                continue
            found[f"{module}.{name}"] = floats(value) if name == "bias" or node.op_type == "Mul" else value
    return found


def _is_norm_weight(value: Parameter) -> bool:
    shape = value.integers.shape if isinstance(value, QuantisedWeight) else value.shape
    return len(shape) == 1 and shape[0] > 1


class _Reader:
    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.model = model
        self._folder = folder
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._dequantisers = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}

    def constant(self, name: str) -> Parameter | None:
        """An initialiser, dequantised or float; None for all else."""
        if name in self._tensors:
            values = self._array(name)
            return values.astype(np.float32) if values.dtype.kind == "f" else None
        node = self._dequantisers.get(name)
        if node is None or node.input[0] not in self._tensors:
            return None
        kind = onnx.TensorProto.DataType.Name(self._tensors[node.input[0]].data_type).lower()
        integers = self._array(node.input[0])
        if kind not in GRIDS:  # the 32-bit integers of a bias
            scale = self._array(node.input[1]).reshape(-1)
            return (integers.astype(np.float64) * scale).astype(np.float32)
        grid = GRIDS[kind]
        return QuantisedWeight(
            integers=integers.astype(grid.storage), encoding=self._encoding(node, grid, integers.ndim)
        )

    def _encoding(self, node: NodeProto, grid: IntGrid, rank: int) -> ParamEncoding:
        values = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        axis, size = int(values.get("axis", 1)), int(values.get("block_size", 0))
        inner = self._dequantisers.get(node.input[1])
        if inner is not None:
            integers, channels = self._array(inner.input[0]), self._array(inner.input[1])
            return Lpbq(
                grid=grid,
                axis=axis,
                block_size=size,
                int_scales=_matrix(integers, axis).astype(np.uint8),
                channel_scales=channels.astype(np.float32),
                rank=rank,
            )
        scales = self._array(node.input[1]).astype(np.float32)
        if size:
            return PerBlock(grid=grid, axis=axis, block_size=size, scales=_matrix(scales, axis), rank=rank)
        if scales.ndim:
            return PerChannel(grid=grid, axis=axis, scales=scales)
        zero_point = int(self._array(node.input[2])) if len(node.input) > 2 else 0
        return PerTensor(grid=grid, scale=float(scales), zero_point=zero_point)

    def _array(self, name: str) -> NDArray[Any]:
        return values_of(self._tensors[name], self._folder)


def _matrix(blocks: NDArray[Any], axis: int) -> NDArray[Any]:
    """The scales of blocks as [O, B], as they lie in the tensor's first two dimensions."""
    matrix = blocks.reshape(blocks.shape[:2])
    return matrix if axis == 1 else np.ascontiguousarray(matrix.T)
