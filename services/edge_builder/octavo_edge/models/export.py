"""The adapted decoder as ONNX graphs, as torch's exporter writes them: no optimiser has touched them.

The exporter's own optimiser is left out on purpose: it takes an addition of 1e-9 for one of nothing, and the epsilon of
a norm is of that size.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import torch
from onnx import ModelProto

from octavo_device.spec import GraphSpec
from octavo_edge.graph.summary import SCOPES
from octavo_edge.graph.weights import WEIGHTS_FILE, WeightsWriter
from octavo_edge.models.decoder import AdaptedDecoder

__all__ = ["OPSET", "export_graph"]

# The first opset with 4-bit integers and blocked DequantizeLinear; what is newer has fewer readers.
OPSET = 21


def export_graph(decoder: AdaptedDecoder, spec: GraphSpec, ar: int, weights: WeightsWriter) -> ModelProto:
    """The graph for `ar` new tokens; its parameters are put into `weights`, and the graph points at them."""
    inputs = [torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in spec.inputs(ar)]
    with _quiet():
        program = torch.onnx.export(
            decoder,
            (*inputs[:4], inputs[4:]),
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            input_names=[tensor.name for tensor in spec.inputs(ar)],
            output_names=[tensor.name for tensor in spec.outputs(ar)],
            verbose=False,
        )
    assert program is not None
    for name, value in program.model.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        array = tensor.numpy()
        place = weights.put(array)
        value.const_value = ir.ExternalTensor(
            WEIGHTS_FILE, place.offset, place.num_bytes, tensor.dtype, shape=ir.Shape(array.shape), name=name
        )
    return _without_traces(ir.to_proto(program.model))


def _without_traces(model: ModelProto) -> ModelProto:
    """Without what the exporter noted of source files and of its own inner values; the modules' names stay."""
    graph = model.graph
    for message in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output, graph, model):
        kept = [entry for entry in message.metadata_props if entry.key == SCOPES]
        values = [entry.value for entry in kept]
        del message.metadata_props[:]
        message.ClearField("doc_string")
        for value in values:
            message.metadata_props.add(key=SCOPES, value=value)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says about itself: that torchvision is absent, and a deprecation inside torch.export."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
