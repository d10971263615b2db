"""TensorRT-RTX: one graph for all lengths that computes what each computed, and engines built without a card."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest
from unit.edge.exported_models import compiled
from unit.edge.test_lowering_edge import graph_of

from octavo_common.errors import InvalidArgument
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.graph.summary import summarise_model
from octavo_edge.parts.vectors import read_vectors
from octavo_edge.passes.dynamic import CannotGeneralise, for_any_length
from octavo_edge.passes.half import to_half
from octavo_edge.passes.lowering import weights_only
from octavo_edge.target import Compiled, Unavailable
from octavo_edge.targets.tensorrt_rtx import TensorRtRtxTarget
from octavo_edge.toolchain.process import LibraryFailed
from octavo_edge.toolchain.tensorrt_rtx_build import Order, build_in_process


def lowered(model, ar):
    graph = graph_of(model, ar=ar)
    return weights_only(onnx.load(str(model.path / graph.file), load_external_data=False), model.path)


@pytest.fixture(scope="module")
def blob(exports, tmp_path_factory):
    """What it makes of the model in 4 bits, and what it tells."""
    return compiled(TensorRtRtxTarget(), exports["w4"], tmp_path_factory.mktemp("tensorrt"), compute_capability="120")


def test_one_engine_serves_all_numbers_of_new_tokens(blob):
    out, result = blob
    assert isinstance(result.outcome, Compiled) and result.metrics["num_engines"] == 2
    described = json.loads((out / "blob.json").read_text())
    assert described["compute_capability"] == 120
    assert described["graphs"]["decoder_1_of_1"] == {ar: {"file": "decoder_1_of_1.engine"} for ar in ("8", "1")}
    assert described["activations"] == "float16" and 50 < result.metrics["same_graph_worst_sqnr_db"] < 100


def test_float32_changes_nothing(exports, tmp_path):
    _, result = compiled(TensorRtRtxTarget(), exports["w8"], tmp_path, precision="float32")
    assert result.metrics["same_graph_worst_sqnr_db"] > 100


def test_only_the_inside_of_norms_stays_float32_in_a_half_graph(exports):
    model = exports["w8"]
    half = onnx.shape_inference.infer_shapes(to_half(lowered(model, 8), model.path), strict_mode=True)
    kinds = {value.name: value.type.tensor_type.elem_type for value in half.graph.value_info}
    wide = Counter(node.op_type for node in half.graph.node if kinds.get(node.output[0]) == onnx.TensorProto.FLOAT)
    assert wide == {"Cast": 4, "Mul": 8, "Pow": 4, "ReduceMean": 4, "Add": 4, "Sqrt": 4, "Reciprocal": 4}
    assert {value.type.tensor_type.elem_type for value in half.graph.input} == {onnx.TensorProto.FLOAT16}


def test_a_graph_with_open_shapes_computes_what_each_of_fixed_shapes_computes(exports):
    model = exports["w8"]
    whole = for_any_length(lowered(model, 8), lowered(model, 1), context_length=32)
    opened = {dim.dim_param for value in whole.graph.input for dim in value.type.tensor_type.shape.dim}
    assert opened == {"", "new", "past", "columns"}
    path = model.path / "any_length.onnx"
    onnx.save(whole, str(path))
    running = OrtGraph(path, num_threads=1)
    for ar in (8, 1):
        onnx.save(lowered(model, ar), str(path))
        fixed = OrtGraph(path, num_threads=1)
        for inputs, _ in read_vectors(model.path, graph_of(model, ar=ar)):
            expected, got = fixed.run(inputs), running.run(inputs)
            assert min(sqnr_db(expected[name], got[name]) for name in expected) > 100
    # A length that neither was made for: three new tokens.
    feeds, _ = next(read_vectors(model.path, graph_of(model, ar=8)))
    shorter = {
        name: values[:, :, :3] if name in ("hidden_0", "cos", "sin") else values for name, values in feeds.items()
    }
    shorter["attention_mask"] = np.concatenate(
        (feeds["attention_mask"][..., :24], feeds["attention_mask"][..., 24:27]), 3
    )
    shorter["attention_mask"] = shorter["attention_mask"][:, :, :3]
    np.testing.assert_allclose(
        running.run(shorter)["hidden_1"], running.run(feeds)["hidden_1"][:, :, :3], rtol=1e-3, atol=1e-3
    )
    path.unlink()


def test_graphs_of_two_models_are_no_one_graph(exports):
    with pytest.raises(CannotGeneralise):
        decoder, head = (graph_of(exports["w8"], part) for part in ("decoder_1_of_1", "head"))
        models = [
            onnx.load(str(exports["w8"].path / graph.file), load_external_data=False) for graph in (decoder, head)
        ]
        for_any_length(*models, context_length=32)


def test_it_names_the_quantisers_that_it_cannot_take(exports):
    graph = read_manifest(exports["w8"].path).parts[1].graph(8)
    quantised = summarise_model(onnx.load(str(exports["w8"].path / graph.file), load_external_data=False))
    against = TensorRtRtxTarget().check(quantised)
    assert "attention_mask/q (QuantizeLinear): TensorRT-RTX has no uint16" in map(str, against)


def test_what_its_parser_refuses_has_the_nodes_name(tmp_path):
    text = """<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[4] x) => (float[4] y) { [strange] y = Det(x) }"""
    onnx.save(onnx.parser.parse_model(text), str(tmp_path / "strange.onnx"))
    order = Order(onnx=str(tmp_path / "strange.onnx"), engine=str(tmp_path / "e"), compute_capability=89, profile={})
    with pytest.raises(LibraryFailed, match=r"strange \(Det\)"):
        build_in_process(order)
    assert not (tmp_path / "e").exists()


def test_a_builder_that_fails_leaves_nothing(exports, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tensorrt_rtx.py").write_text("import os\nos.abort()\n")
    out, result = compiled(TensorRtRtxTarget(), exports["w4"], tmp_path)
    assert isinstance(result.outcome, Unavailable) and "it crashed (SIGABRT)" in str(result.outcome)
    assert list(out.iterdir()) == []


def test_a_builder_that_does_not_come_back_is_ended(tmp_path):
    order = Order(onnx=str(tmp_path / "decoder.onnx"), engine=str(tmp_path / "e"), compute_capability=89, profile={})
    with pytest.raises(LibraryFailed, match=r"TensorRT-RTX, decoder\.onnx: not done after 0 s"):
        build_in_process(order, timeout_s=0.01)


def test_an_unknown_card_is_an_error(exports, tmp_path):
    with pytest.raises(InvalidArgument, match="compute_capability cannot be '90'"):
        compiled(TensorRtRtxTarget(), exports["w4"], tmp_path, compute_capability="90")
