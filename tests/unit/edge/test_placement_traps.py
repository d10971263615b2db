"""What real weights do to naive recipes, on a small decoder whose first token has a massive activation."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from unit.edge.quant_toy import batches, logits, plan, quantise_toy, sequences, write_quantised, write_toy
from unit.edge.toy_graph import SPIKE_CHANNEL

from octavo_device.feeds import Decoding
from octavo_device.spec import read_spec, write_spec
from octavo_edge.graph.metrics import mean_kl, sqnr_db
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.models.layers import RMSNorm
from octavo_edge.quant.calibrate import quantise_graph
from octavo_edge.quant.placement import Group, Role, place
from octavo_edge.quant.segments import SegmentRun, cut
from octavo_edge.quant.topology import Topology
from octavo_edge.recipe import Method

CALIBRATION = sequences(1, 32, first=0)
HELD_OUT = sequences(2, 6, first=0)


@pytest.fixture(scope="module")
def spiky(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spiky")
    write_toy(folder, spike=True)
    return folder


@pytest.fixture(scope="module")
def exact(spiky):
    return logits(spiky, HELD_OUT)


@pytest.fixture(scope="module")
def w8a16(spiky, tmp_path_factory):
    folder = tmp_path_factory.mktemp("w8a16")
    return folder, *quantise_toy(spiky, folder, plan(), CALIBRATION)


def residual_groups(graph):
    return [group for group in place(graph).groups if group.role is Role.RESIDUAL]


def test_the_first_token_alone_has_the_massive_activation(spiky):
    graph = Topology(spiky / "ar8.onnx")
    name = residual_groups(graph)[1].tensors[0]
    (whole,) = cut(graph, [])
    run = SegmentRun(graph, whole, also=[name], override=lambda _: None)
    residual = run.run(batches(spiky, HELD_OUT[:1])[0])[name][0, 0]
    assert residual[0, SPIKE_CHANNEL] > 1e4
    assert np.abs(residual[1:]).max() < 100


def test_quantisers_inside_the_norms_destroy_the_model_and_ours_do_not(spiky, exact, w8a16, tmp_path):
    graph = Topology(spiky / "ar8.onnx")
    ours = place(graph)
    inside = tuple(Group(tensors=(name,), role=Role.PLAIN) for name in sorted(ours.floats))
    stock = replace(ours, groups=ours.groups + inside, floats=frozenset())
    quantise_toy(spiky, tmp_path, plan(), CALIBRATION, placement=stock)
    kl_ours, kl_stock = (mean_kl(exact, logits(folder, HELD_OUT)) for folder in (w8a16[0], tmp_path))
    assert kl_stock > 0.5
    assert kl_ours < kl_stock / 10


def test_no_method_clips_the_residual_stream(spiky, tmp_path):
    for method in Method:
        asked = plan(method=method, percentile=99.0)
        graph, quantised = quantise_toy(spiky, tmp_path / method, asked, CALIBRATION)
        for group in residual_groups(graph)[1:]:
            encoding = quantised.activations[group.tensors[0]]
            assert (encoding.grid.highest - encoding.zero_point) * encoding.scale > 1e4, method


def test_clipping_the_residual_stream_changes_what_the_float_graph_says(spiky, exact, tmp_path):
    model = onnx.load(spiky / "ar8.onnx")
    name = residual_groups(Topology(spiky / "ar8.onnx"))[1].tensors[0]
    index, node = next((i, node) for i, node in enumerate(model.graph.node) if name in node.output)
    node.output[0] = f"{name}_whole"
    limits = [numpy_helper.from_array(np.float32(limit), f"limit_{limit}") for limit in (-100, 100)]
    model.graph.initializer.extend(limits)
    clip = onnx.helper.make_node("Clip", [f"{name}_whole", *(limit.name for limit in limits)], [name], "clip")
    model.graph.node.insert(index + 1, clip)
    onnx.save(model, tmp_path / "ar8.onnx")
    write_spec(tmp_path, read_spec(spiky))
    clipped = logits(tmp_path, HELD_OUT, ars=[8])
    assert mean_kl(exact[:, :1], clipped[:, :1]) > 0.05
    # No other token reaches the limits.
    assert mean_kl(exact[:, 1:], clipped[:, 1:]) < 0.01


def normed(x, *, scale, dtype):
    """RMSNorm of the last axis with every result rounded to a type, as a device computes in it."""
    x, factor, eps = x.astype(dtype), dtype(scale), dtype(1e-5 * scale * scale)
    with np.errstate(over="ignore"):  # that is the trap
        small = x * factor
        mean = np.mean(small * small, axis=-1, keepdims=True, dtype=dtype)
        return small / np.sqrt(mean + eps)


def test_half_precision_overflows_in_a_plain_norm_and_not_in_ours(spiky):
    graph = Topology(spiky / "ar8.onnx")
    name = residual_groups(graph)[1].tensors[0]
    (whole,) = cut(graph, [])
    run = SegmentRun(graph, whole, also=[name], override=lambda _: None)
    residual = run.run(batches(spiky, HELD_OUT[:1])[0])[name][0, 0]
    # As large as real models have it; beyond 128 * 256 the smaller square is infinite too.
    residual[0, SPIKE_CHANNEL] = 24000
    exact = normed(residual, scale=1.0, dtype=np.float64)
    plain, ours = (normed(residual, scale=scale, dtype=np.float16) for scale in (1.0, 1 / 128))
    # The square is infinite, and what is divided by it nothing.
    assert not plain[0].any()
    module = RMSNorm(residual.shape[-1], 1e-5).to_empty(device="cpu").half()
    module.weight.fill_(1.0)
    for got in (ours, module(torch.from_numpy(residual).half()).numpy()):
        for token in range(len(residual)):
            assert sqnr_db(exact[token], got[token]) > 45


def behind_the_massive_token(source, folder, tokens):
    """Calls of a folder's graph for sequences behind their first token, which the float graph put into the past."""
    exact, model = OrtModel(source, num_threads=1), OrtModel(folder, num_threads=1)
    for sequence in tokens:
        first = Decoding(exact.spec, exact)
        first.logits(sequence[:1], ars=[1])
        decoding = Decoding(model.spec, model)
        decoding.cache = first.cache
        yield from decoding.calls(sequence[1:9], ars=[8])


def test_with_the_massive_token_in_the_past_sixteen_bits_are_enough(spiky, exact, w8a16, tmp_path):
    graph = Topology(spiky / "ar8.onnx")
    feeds = [call.inputs for call in behind_the_massive_token(spiky, spiky, CALIBRATION)]
    quantised = quantise_graph(graph, place(graph), plan(), feeds, lambda *_: None)
    for group in residual_groups(graph)[1:]:
        encoding = quantised.activations[group.tensors[0]]
        assert (encoding.grid.highest - encoding.zero_point) * encoding.scale < 100
    write_quantised(spiky, tmp_path, quantised)
    prefixed = np.stack([call.logits for call in behind_the_massive_token(spiky, tmp_path, HELD_OUT)])
    reference = exact[:, 1:9]
    assert mean_kl(reference, prefixed) < 0.7 * mean_kl(reference, logits(w8a16[0], HELD_OUT)[:, 1:9])


def test_a_floating_point_residual_takes_back_what_the_wide_grid_cost(spiky, exact, w8a16, tmp_path):
    quantise_toy(spiky, tmp_path, plan(float_residual=True), CALIBRATION)
    wide, narrow = logits(w8a16[0], HELD_OUT), logits(tmp_path, HELD_OUT)
    # The massive token's own logits are those of its spike alone; the loss is in the others.
    assert mean_kl(exact[:, 1:], narrow[:, 1:]) < 0.7 * mean_kl(exact[:, 1:], wide[:, 1:])
    assert sqnr_db(exact[:, 1:], narrow[:, 1:]) > sqnr_db(exact[:, 1:], wide[:, 1:])


def test_a_massive_activation_that_is_not_finite_is_told_by_tensor(spiky, tmp_path):
    feeds = batches(spiky, CALIBRATION[:1])
    feeds[0]["cos"] = np.full_like(feeds[0]["cos"], np.nan)
    graph = Topology(spiky / "ar8.onnx")
    with pytest.raises(ValueError, match="tensor cos: values that are not finite"):
        quantise_graph(graph, place(graph), plan(), feeds, lambda *_: None)
