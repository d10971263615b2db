"""Biases beside weights that are next to nothing: they fit 32 bits, and ONNX Runtime gives what the floats give."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file
from unit.edge.quant_toy import plan
from unit.edge.small_models import adapt, checkpoint, context, optimise

from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.quant.calibrate import quantise_graph
from octavo_edge.quant.encodings import PerChannel
from octavo_edge.quant.placement import place
from octavo_edge.quant.qdq import write_qdq
from octavo_edge.quant.topology import Topology, corresponding_names
from octavo_edge.recipe import PRESETS, Calibration, Evaluation
from octavo_edge.stages.quantise import Quantise

MOST = np.iinfo(np.int32).max


class Conv:
    """A convolution with a bias, its third channel's weights scaled; the float graph's and the QDQ graph's results."""

    def __init__(self, folder, scale_of_third):
        rng = np.random.default_rng(0)
        weight, bias = rng.normal(size=(4, 8, 1, 1)).astype(np.float32), rng.normal(size=4).astype(np.float32)
        weight[2] *= np.float32(scale_of_third)
        node = helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")
        ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, c, 1, 5])] for n, c in (("x", 8), ("y", 4))]
        constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
        model = helper.make_model(helper.make_graph([node], "g", *ends, constants), ir_version=10)
        model.opset_import[0].version = 21
        onnx.save(model, folder / "float.onnx")
        graph, feeds = Topology(folder / "float.onnx"), {"x": rng.normal(size=(1, 8, 1, 5)).astype(np.float32)}
        self.bias = bias
        self.quantised = quantise_graph(graph, place(graph), plan(), [feeds], lambda *_: None)
        with WeightsWriter(folder) as data:
            write_qdq(graph, self.quantised, corresponding_names(graph, graph), folder / "qdq.onnx", data)
        self.exact, self.ours = (OrtGraph(folder / f"{form}.onnx").run(feeds)["y"] for form in ("float", "qdq"))
        written = {tensor.name: tensor for tensor in onnx.load(folder / "qdq.onnx").graph.initializer}
        self.bias_integers = numpy_helper.to_array(written["y_bias_q"])


@pytest.mark.parametrize("scale_of_third", [0.01, 1e-12, 1e-30, 0.0])
def test_a_bias_is_kept_whatever_its_channels_weights(tmp_path, scale_of_third):
    conv = Conv(tmp_path, scale_of_third)
    for channel in range(4):
        assert sqnr_db(conv.exact[0, channel], conv.ours[0, channel]) > 30
    assert conv.quantised.raised == ({"w": 1} if 0 < scale_of_third < 0.01 else {})


def test_a_scale_is_raised_as_far_as_onnx_runtimes_own_quantiser_raises_it_and_others_not(tmp_path):
    plain, tiny = (
        Conv(tmp_path / name, factor) for name, factor in ((_made(tmp_path, "a"), 1), (_made(tmp_path, "b"), 1e-12))
    )
    before, after = (conv.quantised.weights["w"].encoding for conv in (plain, tiny))
    assert isinstance(before, PerChannel) and isinstance(after, PerChannel)
    others = [0, 1, 3]
    assert np.array_equal(before.scales[others], after.scales[others])
    assert np.array_equal(plain.quantised.weights["w"].integers[others], tiny.quantised.weights["w"].integers[others])
    # Its rule (`adjust_weight_scale_for_int32_bias`): twice the bias over all 32-bit integers, and a ten-thousandth.
    source = np.float64(tiny.quantised.activations["x"].scale)
    theirs = 2.0 * abs(float(tiny.bias[2])) / (2.0 * MOST) / source
    assert theirs <= after.scales[2] <= theirs * 1.0001
    assert MOST * 0.9999 < abs(int(tiny.bias_integers[2])) <= MOST


def _made(folder, name):
    (folder / name).mkdir()
    return name


def test_a_model_with_such_channels_is_built_and_its_report_names_them(tmp_path):
    results = {}
    for kind in ("as it is", "next to nothing"):
        folder = tmp_path / kind
        source, _ = checkpoint(folder / "model", "qwen2")
        file = source.path / "model.safetensors"
        tensors = load_file(file)
        tensors["model.layers.0.self_attn.k_proj.bias"][3] = 5.0
        if kind != "as it is":
            tensors["model.layers.0.self_attn.k_proj.weight"][3] *= np.float32(1e-12)
        save_file(tensors, file, metadata={"format": "pt"})
        adapted, _ = adapt(source, folder / "adapt")
        graphs, _ = optimise(adapted, folder / "optimise")
        recipe = replace(PRESETS["w8a16"], calibration=Calibration(num_windows=4), evaluation=Evaluation(num_windows=2))
        results[kind] = Quantise(recipe=recipe).run(graphs, context(folder / "quantise"))
    plain, tiny = results.values()
    assert not any("next to nothing" in warning for warning in plain.warnings)
    (warning,) = [warning for warning in tiny.warnings if "next to nothing" in warning]
    assert "self_attn.k_proj.weight" in warning and "1 channel" in warning
    # Key 0 is where a lost bias would be seen.
    for metric in ("sqnr_db", "min_window_sqnr_db"):
        assert tiny.metrics[metric] > plain.metrics[metric] - 1
