"""What a target is told of an ONNX file: its nodes with the types that they read and write, and the weights' size."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, helper

from octavo_edge.target import GraphNode, GraphSummary

__all__ = ["SCOPES", "summarise", "summarise_model", "tensor_bytes"]

# Metadata of a node that came from torch: the modules that it was traced in, outermost first, as a Python list.
SCOPES = "pkg.torch.onnx.name_scopes"
_BITS: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}


def summarise(path: Path) -> GraphSummary:
    """The summary of a file; external data is not read."""
    return summarise_model(onnx.load(str(path), load_external_data=False))


def summarise_model(model: ModelProto) -> GraphSummary:
    """The summary of a graph. Types are those that the graph states or ONNX infers; an unknown one is left out."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types: dict[str, int] = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    nodes = []
    for node in graph.node:
        names = {_type_name(types[name]) for name in (*node.input, *node.output) if types.get(name)}
        nodes.append(GraphNode(name=node.name, op=node.op_type, domain=node.domain, dtypes=tuple(sorted(names))))
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return GraphSummary(opset=opset, nodes=tuple(nodes), weight_bytes=sum(map(tensor_bytes, graph.initializer)))


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes of an initialiser's values, wherever they are stored."""
    count = 1
    for size in tensor.dims:
        count *= size
    bits = _BITS.get(tensor.data_type) or helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    return (count * bits + 7) // 8


def _type_name(number: int) -> str:
    return TensorProto.DataType.Name(number).lower()
