"""What the HTP's compiler gets instead of the golden graph computes the same: each step on small graphs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper
from unit.edge.projections import conv, node, quantiser, save

from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.passes.dense import convs_to_matmul, sink_transposes, zero_points_of_int4
from octavo_edge.passes.quantisers import put_quantisers, take_quantisers
from octavo_edge.targets.qnn_htp.lowering import lower, weights_against


def run(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feeds = {value.name: generator.standard_normal(value.shape).astype(np.float32) for value in session.get_inputs()}
    return session.run(None, feeds)


def lowered(path):
    with WeightsWriter(path.parent) as weights:
        lower(path, path.with_name("lowered.onnx"), weights)
    return path.with_name("lowered.onnx")


def ops(path):
    model = onnx.load(str(path), load_external_data=False)
    return [entry.op_type for entry in model.graph.node if "Linear" not in entry.op_type]


@pytest.mark.parametrize("form", [{}, {"bits": 4}, {"bits": 4, "block": 32}], ids=["w8", "w4", "lpbq"])
def test_a_convolution_of_rows_is_one_product_to_the_bit(tmp_path, form):
    path = conv(tmp_path / "conv.onnx", **form)
    assert ops(lowered(path)) == ["MatMul"]
    np.testing.assert_allclose(run(tmp_path / "lowered.onnx")[0], run(path)[0], atol=80 / 65535 * 1.01)
    assert sqnr_db(run(path)[0], run(tmp_path / "lowered.onnx")[0]) > 80


@pytest.mark.parametrize("form", [{}, {"bits": 4, "block": 32}], ids=["w8", "lpbq"])
def test_a_bias_is_added_behind_the_product(tmp_path, form):
    path = conv(tmp_path / "conv.onnx", bias=True, **form)
    assert ops(lowered(path)) == ["MatMul", "Add"]
    assert sqnr_db(run(path)[0], run(tmp_path / "lowered.onnx")[0]) > 70


def test_eight_bits_are_reached_by_way_of_sixteen(tmp_path):
    path = conv(tmp_path / "conv.onnx", narrow=True)
    made = onnx.load(str(lowered(path)), load_external_data=False).graph
    kinds = {tensor.name: tensor.data_type for tensor in made.initializer}
    product = next(entry for entry in made.node if entry.op_type == "MatMul").output[0]
    first = next(entry for entry in made.node if entry.input[0] == product)
    assert first.op_type == "QuantizeLinear"
    assert kinds[first.input[2]] == TensorProto.UINT16
    steps = np.rint((run(tmp_path / "lowered.onnx")[0] - run(path)[0]) / (80 / 255))
    # A value at the border of two steps may be rounded to the other one.
    assert np.abs(steps).max() <= 1
    assert np.count_nonzero(steps) <= 0.02 * steps.size


def test_keys_that_several_heads_read_are_signed_once(tmp_path):
    constants = []
    nodes = [
        *(entry for name in ("q1", "q2", "k") for entry in quantiser(name, 8 / 65535, 30000, constants)),
        node("MatMul", ["q1_dq", "k_dq"], ["y1"]),
        node("MatMul", ["q2_dq", "k_dq"], ["y2"]),
    ]
    shapes = {"q1": [1, 1, 3, 4], "q2": [1, 1, 3, 4], "k": [1, 1, 4, 5]}, {"y1": [1, 1, 3, 5], "y2": [1, 1, 3, 5]}
    path = save(tmp_path / "heads.onnx", nodes, *shapes, constants)
    made = onnx.load(str(lowered(path))).graph
    signed = [tensor.name for tensor in made.initializer if tensor.data_type == TensorProto.INT16]
    assert len(signed) == 1
    assert sum(entry.op_type == "QuantizeLinear" and entry.input[2] == signed[0] for entry in made.node) == 1
    for expected, got in zip(run(path), run(tmp_path / "lowered.onnx"), strict=True):
        assert sqnr_db(expected, got) > 70


def test_a_four_bit_weight_has_a_zero_point(tmp_path):
    conv(tmp_path / "conv.onnx", bits=4, block=32)
    before = onnx.load(str(tmp_path / "conv.onnx"))
    after = zero_points_of_int4(before)
    assert [entry.name for entry in after.graph.initializer if entry.name == "w_q_zero_point"]
    onnx.save(after, str(tmp_path / "after.onnx"))
    np.testing.assert_array_equal(run(tmp_path / "after.onnx")[0], run(tmp_path / "conv.onnx")[0])


def test_blocks_of_inputs_that_the_simulator_gets_wrong_are_named(tmp_path):
    path = conv(tmp_path / "conv.onnx", bits=4, block=32)
    assert weights_against(path) == []
    model = onnx.load(str(path))
    next(tensor for tensor in model.graph.initializer if tensor.name == "w_q").dims[1] = 48
    onnx.save(model, str(path))
    assert "48 inputs" in weights_against(path)[0]


def test_quantisers_that_are_taken_and_put_back_change_nothing(tmp_path):
    path = conv(tmp_path / "conv.onnx", bias=True)
    model, encodings = take_quantisers(onnx.load(str(path)))
    assert set(encodings.by_tensor) == {"x", "product"}
    assert sum(entry.op_type == "QuantizeLinear" for entry in model.graph.node) == 0
    onnx.save(put_quantisers(model, encodings), str(tmp_path / "again.onnx"))
    np.testing.assert_array_equal(run(tmp_path / "again.onnx")[0], run(path)[0])


def test_a_pair_stays_where_the_tensor_is_read_before_it_too(tmp_path):
    constants = []
    nodes = [node("Relu", ["x"], ["r"]), *quantiser("r", 0.1, 3, constants), node("Add", ["r", "r_dq"], ["y"])]
    path = save(tmp_path / "both.onnx", nodes, {"x": [4]}, {"y": [4]}, constants)
    model, encodings = take_quantisers(onnx.load(str(path)))
    assert not encodings.by_tensor
    assert len(model.graph.node) == 4


def test_transposes_sink_through_nodes_whose_inputs_all_have_them(tmp_path):
    nodes = [
        node("Transpose", ["a"], ["at"], perm=[0, 2, 1]),
        node("Transpose", ["b"], ["bt"], perm=[0, 2, 1]),
        node("Sigmoid", ["at"], ["s"]),
        node("Mul", ["s", "bt"], ["y"]),
    ]
    path = save(tmp_path / "t.onnx", nodes, {"a": [2, 3, 4], "b": [2, 3, 4]}, {"y": [2, 4, 3]}, [])
    after = sink_transposes(onnx.load(str(path)))
    onnx.save(after, str(tmp_path / "after.onnx"))
    np.testing.assert_array_equal(run(tmp_path / "after.onnx")[0], run(path)[0])
    product = next(entry for entry in after.graph.node if entry.op_type == "Mul")
    assert product.input[1] == "b"


def test_a_convolution_with_a_window_stays(tmp_path):
    weight = numpy_helper.from_array(np.ones((2, 3, 1, 3), np.float32), "w")
    path = save(
        tmp_path / "c.onnx", [node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 1, 5]}, {"y": [1, 2, 1, 3]}, [weight]
    )
    after = convs_to_matmul(onnx.load(str(path)), lambda tensor, name: tensor)
    assert [entry.op_type for entry in after.graph.node] == ["Conv"]
