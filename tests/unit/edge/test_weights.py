"""Grids and weight scales against ONNX Runtime's own operators and sums in float64."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from onnx import TensorProto, helper

from octavo_edge.quant import grid as grids
from octavo_edge.quant import weights

ONNX_TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}
VALUES = npst.arrays(np.float32, st.integers(1, 64), elements=st.floats(-(2.0**14), 2.0**14, width=32))


def runtime_round_trip(values, scale, zero_point, grid):
    """Integers and floats of ONNX Runtime's QuantizeLinear and DequantizeLinear."""
    dtype = ONNX_TYPES[grid.name]
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [len(values)])],
        [
            helper.make_tensor_value_info("q", dtype, [len(values)]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(values)]),
        ],
        [helper.make_tensor("s", TensorProto.FLOAT, [], [scale]), helper.make_tensor("z", dtype, [], [zero_point])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})


@pytest.mark.parametrize("grid", [grids.INT8, grids.UINT8, grids.INT16, grids.UINT16], ids=lambda g: g.name)
@settings(max_examples=25, deadline=None)
@given(values=VALUES)
def test_integers_are_those_of_the_runtime(grid, values):
    scale, zero_point = grids.affine_from_range(float(values.min()), float(values.max()), grid)
    integers, floats = runtime_round_trip(values, scale, zero_point, grid)
    ours = grids.quantise(values, scale, grid, zero_point)
    np.testing.assert_array_equal(ours, integers)
    np.testing.assert_array_equal(grids.dequantise(ours, scale, zero_point), floats)


@pytest.mark.parametrize("grid", grids.GRIDS.values(), ids=lambda g: g.name)
@settings(max_examples=50, deadline=None)
@given(values=VALUES)
def test_an_affine_grid_is_exact_at_zero_and_half_a_step_off_elsewhere(grid, values):
    scale, zero_point = grids.affine_from_range(float(values.min()), float(values.max()), grid)
    assert grids.dequantise(grids.quantise(np.zeros(1, np.float32), scale, grid, zero_point), scale, zero_point) == 0
    back = grids.dequantise(grids.quantise(values, scale, grid, zero_point), scale, zero_point)
    # One whole step at the borders: rounding the zero point may move them by half a step.
    assert np.all(np.abs(back - values) <= scale * 1.001 + 1e-6)
    again = grids.quantise(back, scale, grid, zero_point)
    np.testing.assert_array_equal(again, grids.quantise(values, scale, grid, zero_point))


def test_halves_are_rounded_to_even():
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    np.testing.assert_array_equal(grids.quantise(values, 1.0, grids.INT8), [0, 2, 2, 0, -2])


def test_a_scale_is_never_zero_or_denormal():
    assert grids.affine_from_range(0.0, 0.0, grids.UINT16)[0] == 1.0
    assert grids.symmetric_from_range(-1e-45, 0.0, grids.INT8) == 1.0
    assert weights.channel_scales(np.zeros((2, 4), np.float32), grids.INT4).channel.tolist() == [1.0, 1.0]


def test_every_channel_reaches_an_end_of_its_grid_and_none_is_clipped():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(6, 32)).astype(np.float32) * rng.uniform(1e-3, 1e3, size=(6, 1)).astype(np.float32)
    scales = weights.channel_scales(weight, grids.INT4)
    integers = weights.to_integers(weight, scales, grids.INT4)
    reached = (integers.max(axis=1) == 7) | (integers.min(axis=1) == -8)
    assert reached.all() and not np.all(integers.min(axis=1) > -8) and not np.all(integers.max(axis=1) < 7)
    assert np.all(np.abs(weights.to_floats(integers, scales) - weight) <= scales.expand(32) * 0.5001)


def test_a_block_is_a_channel_of_its_own():
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(4, 64)).astype(np.float32)
    blocked = weights.block_scales(weight, grids.INT4, 16)
    alone = weights.channel_scales(weight.reshape(16, 16), grids.INT4)
    np.testing.assert_array_equal(blocked.block.reshape(-1), alone.channel)
    np.testing.assert_array_equal(
        weights.to_integers(weight, blocked, grids.INT4).reshape(16, 16),
        weights.to_integers(weight.reshape(16, 16), alone, grids.INT4),
    )


def test_blocks_that_do_not_divide_a_channel_are_refused():
    with pytest.raises(ValueError, match="blocks of 16 do not divide 40"):
        weights.block_scales(np.ones((2, 40), np.float32), grids.INT4, 16)


def test_onnx_runtime_reads_four_bit_integers_as_we_do():
    rng = np.random.default_rng(2)
    integers = rng.integers(-8, 8, size=(4, 32)).astype(np.int8)
    scales = weights.BlockScales(block=rng.uniform(0.1, 1, size=(4, 2)).astype(np.float32), block_size=16)
    packed = helper.make_tensor("q", TensorProto.INT4, [4, 32], integers.reshape(-1).tolist())
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=16)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [packed, onnx.numpy_helper.from_array(scales.block, "s")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {})[0], weights.to_floats(integers, scales))
