"""QDQ graphs: run by ONNX Runtime, compared with its own quantiser and with weights rounded by hand."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from unit.edge.quant_toy import W8, batches, logits, plan, quantise_toy, sequences, write_toy

from octavo_edge.graph.metrics import mean_kl, sqnr_db
from octavo_edge.quant.grid import INT4, INT8, UINT16
from octavo_edge.quant.placement import WeightKind, place
from octavo_edge.quant.plan import WeightPlan
from octavo_edge.quant.topology import Topology
from octavo_edge.recipe import Granularity

CALIBRATION = sequences(1, 32)
HELD_OUT = sequences(2, 6)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float")
    write_toy(folder)
    return folder


@pytest.fixture(scope="module")
def exact(toy):
    return logits(toy, HELD_OUT)


@pytest.fixture(scope="module")
def w8a16(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("w8a16")
    return folder, *quantise_toy(toy, folder, plan(), CALIBRATION)


class Reader(CalibrationDataReader):
    def __init__(self, feeds):
        self._feeds = iter(feeds)

    def get_next(self):
        return next(self._feeds, None)


@pytest.fixture(scope="module")
def stock(toy, tmp_path_factory):
    """ONNX Runtime's own quantiser, kept out of the norms."""
    path = tmp_path_factory.mktemp("stock") / "ar8.onnx"
    graph = Topology(toy / "ar8.onnx")
    floats = place(graph).floats
    out = [node.name for node in graph.nodes if floats & set(node.output)]
    quantize_static(
        str(toy / "ar8.onnx"),
        str(path),
        Reader(batches(toy, CALIBRATION)),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt16,
        weight_type=QuantType.QInt8,
        per_channel=True,
        calibrate_method=CalibrationMethod.MinMax,
        nodes_to_exclude=out,
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
    )
    return path


def test_sixteen_bit_activations_and_eight_bit_weights_keep_the_logits(w8a16, exact):
    ours = logits(w8a16[0], HELD_OUT)
    assert sqnr_db(exact, ours) > 33
    assert mean_kl(exact, ours) < 0.001


def test_integers_of_weights_are_those_of_onnx_runtime(w8a16, stock):
    model = onnx.load(stock)
    theirs = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    _, graph, quantised = w8a16
    compared = 0
    for name, weight in quantised.weights.items():
        if f"{name}_quantized" in theirs and name[-2:] in ("_0", "_1") and "norm" not in name:
            # Where the largest magnitude is negative steps are finer than the runtime's, whose grid is cut at -127.
            exact = graph.constant(name).reshape(len(weight.integers), -1)
            same = exact.max(axis=1) >= -exact.min(axis=1)
            assert same.any(), name
            integers = (weight.integers, theirs[f"{name}_quantized"])
            ours, stock_ones = (array.reshape(exact.shape)[same].astype(int) for array in integers)
            difference = ours - stock_ones
            # A scale that differs in its last bit moves a number that lies between two integers.
            assert np.abs(difference).max() <= 1 and np.mean(difference != 0) < 0.01, name
            compared += 1
    assert compared == 14


def test_simulated_weights_are_what_the_runtime_computes_with(w8a16):
    folder, _, quantised = w8a16
    model = onnx.load(folder / "ar8.onnx")
    wanted = ["q_0_dq", "down_1_dq", "head_dq"]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in wanted)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {v.name: np.zeros(v.shape, np.int64 if "int64" in v.type else np.float32) for v in session.get_inputs()}
    for name, values in zip(wanted, session.run(wanted, feeds), strict=True):
        np.testing.assert_array_equal(values, quantised.weights[name.removesuffix("_dq")].floats())


def test_all_graphs_share_one_file_in_which_nothing_lies_twice(w8a16):
    folder, _, quantised = w8a16
    places = []
    for ar in (8, 1):
        model = onnx.load(folder / f"ar{ar}.onnx", load_external_data=False)
        onnx.checker.check_model(str(folder / f"ar{ar}.onnx"))
        external = {t.name: tuple((e.key, e.value) for e in t.external_data) for t in model.graph.initializer}
        places.append({name: place for name, place in external.items() if place})
    assert places[0] == places[1] and len(places[0]) == 8
    large = sum(w.integers.nbytes for w in quantised.weights.values() if w.integers.nbytes > 1024)
    padding = 4096 * len(places[0])
    assert large <= (folder / "weights.data").stat().st_size < large + padding


def test_one_token_at_a_time_continues_what_eight_at_a_time_began(w8a16, exact):
    folder = w8a16[0]
    chunks, tokens = logits(folder, HELD_OUT, ars=[8]), logits(folder, HELD_OUT, ars=[1])
    assert sqnr_db(exact, tokens) > 33
    assert mean_kl(chunks, tokens) < 0.001


def test_a_cache_of_eight_bits_is_symmetric_and_tied_in_all_graphs(toy, tmp_path, exact):
    quantise_toy(toy, tmp_path, plan(cache=INT8), CALIBRATION)
    found = []
    for ar in (8, 1):
        model = onnx.load(tmp_path / f"ar{ar}.onnx", load_external_data=False)
        constants = {t.name: t for t in model.graph.initializer}
        for layer in range(2):
            for kind in ("key", "value"):
                scales = [numpy_helper.to_array(constants[f"{p}{kind}_{layer}_scale"]) for p in ("past_", "")]
                assert scales[0] == scales[1]
                zero = constants[f"past_{kind}_{layer}_zero_point"]
                assert zero.data_type == onnx.TensorProto.INT8 and numpy_helper.to_array(zero) == 0
                found.append(scales[0])
    assert found[:4] == found[4:]
    assert mean_kl(exact, logits(tmp_path, HELD_OUT)) < 0.005


@pytest.mark.parametrize(
    ("granularity", "block_size"), [(Granularity.PCQ, None), (Granularity.BQ, 16), (Granularity.LPBQ, 16)]
)
def test_four_bit_weights_run_as_they_are_simulated(toy, tmp_path, exact, granularity, block_size):
    blocks = WeightPlan(grid=INT4, granularity=granularity, block_size=block_size)
    _, quantised = quantise_toy(toy, tmp_path / "q", plan(blocks, head=W8, grid=None, cache=None), CALIBRATION)
    by_hand = onnx.load(toy / "ar8.onnx")
    for tensor in by_hand.graph.initializer:
        if tensor.name in quantised.weights:
            tensor.CopyFrom(numpy_helper.from_array(quantised.weights[tensor.name].floats(), tensor.name))
    onnx.save(by_hand, tmp_path / "ar8.onnx")
    (tmp_path / "spec.json").write_bytes((toy / "spec.json").read_bytes())
    simulated = logits(tmp_path, HELD_OUT, ars=[8])
    ours = logits(tmp_path / "q", HELD_OUT, ars=[8])
    assert sqnr_db(simulated, ours) > 100
    assert sqnr_db(exact, ours) < 30


def test_search_and_feedback_beat_minmax_at_four_bits(toy, tmp_path, exact):
    losses = {}
    for name, extra in (("minmax", {}), ("seqmse", {"num_candidates": 20}), ("gptq", {"feedback": True})):
        blocks = WeightPlan(grid=INT4, granularity=Granularity.PCQ, **extra)
        quantise_toy(toy, tmp_path / name, plan(blocks, grid=None, cache=None), CALIBRATION)
        losses[name] = mean_kl(exact, logits(tmp_path / name, HELD_OUT))
    assert losses["seqmse"] < losses["minmax"]
    assert losses["gptq"] < losses["minmax"]


def test_a_table_that_stays_float_fits_its_grid_with_all_rows(toy, tmp_path):
    asked = plan()
    asked = replace(asked, weights={kind: w for kind, w in asked.weights.items() if kind is not WeightKind.EMBEDDING})
    graph, quantised = quantise_toy(toy, tmp_path, asked, [[7] * 16])
    (looked_up,) = (node.output[0] for node in graph.nodes if node.op_type == "Gather")
    encoding, table = quantised.activations[looked_up], graph.constant("embed")
    lowest, highest = ((q - encoding.zero_point) * encoding.scale for q in (0, 65535))
    assert lowest <= table.min() and highest >= table.max()


def test_grids_of_activations_have_sixteen_unsigned_bits(w8a16):
    _, reference, quantised = w8a16
    assert {e.grid for e in quantised.activations.values()} == {UINT16}
    assert {"attention_mask", "logits", "key_0", "past_value_1"} <= set(quantised.activations)
    assert not any(reference.types[name] == onnx.TensorProto.INT64 for name in quantised.activations)
