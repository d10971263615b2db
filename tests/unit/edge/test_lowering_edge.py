"""Graphs in the form of tool-chains that keep integers in weights alone: what goes, what stays, what they compute."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from octavo_edge.graph.manifest import read_manifest
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.parts.vectors import read_vectors
from octavo_edge.passes.lowering import convs_to_gemms, weights_only


def graph_of(model, part="decoder_1_of_1", ar=8):
    found = next(entry for entry in read_manifest(model.path).parts if entry.name == part)
    return found.graph(ar)


def saved(model, graph, change):
    """The changed graph beside the weights that it points at, in ONNX Runtime."""
    proto = change(onnx.load(str(model.path / graph.file), load_external_data=False))
    path = model.path / f"changed_{graph.file}"
    onnx.save(proto, str(path))
    try:
        return proto, OrtGraph(path, num_threads=1)
    finally:
        path.unlink()


@pytest.mark.parametrize("recipe", ["w8", "w4"])
def test_products_of_matrices_give_what_convolutions_give(exports, recipe):
    model = exports[recipe]
    graph = graph_of(model)
    before, convolutions = saved(model, graph, lambda proto: weights_only(proto, model.path, linear=False))
    after, products = saved(model, graph, lambda proto: weights_only(proto, model.path))
    ops_before, ops = (Counter(node.op_type for node in proto.graph.node) for proto in (before, after))
    assert ops["Conv"] == 0 and ops["Gemm"] == ops_before["Conv"] > 0
    # Most of the moves around a product cancel with those that the convolution needed.
    assert ops["Transpose"] < ops_before["Transpose"] + ops["Gemm"]
    for inputs, _ in read_vectors(model.path, graph):
        expected, got = convolutions.run(inputs), products.run(inputs)
        assert min(sqnr_db(expected[name], got[name]) for name in expected) > 100


@pytest.mark.parametrize("recipe", ["w8", "w4"])
def test_only_weights_of_products_keep_integers(exports, recipe):
    model = exports[recipe]
    proto, _ = saved(model, graph_of(model), lambda found: weights_only(found, model.path))
    assert not [node.name for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    dequantised = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    weights = {node.input[1] for node in proto.graph.node if node.op_type == "Gemm"}
    assert {node.output[0] for node in dequantised} == weights
    names = {tensor.name for tensor in proto.graph.initializer}
    assert all(set(node.input) <= names for node in dequantised), "scales are constants"


def test_a_convolution_that_looks_around_stays(tmp_path):
    text = """<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[1, 3, 1, 8] x, float[4, 3, 1, 3] w) => (float[1, 4, 1, 8] y)
    { y = Conv<pads = [0, 1, 0, 1]>(x, w) }"""
    model = convs_to_gemms(onnx.parser.parse_model(text))
    assert [node.op_type for node in model.graph.node] == ["Conv"]
