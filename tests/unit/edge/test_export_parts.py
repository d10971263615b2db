"""Parts compute what the whole graph does, wherever it is cut, and carry what a device and other tool-chains need."""

import itertools
import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from unit.edge.exported import FAST, exported, optimised_toy, quantised
from unit.edge.toy_graph import LAYERS

from octavo_common.errors import InvalidArgument
from octavo_device.spec import graph_file, read_spec
from octavo_edge.graph.manifest import SplitOptions, read_manifest
from octavo_edge.quant import encodings
from octavo_edge.recipe import Precision, QType

SPLITS = {
    "usual": SplitOptions(),
    "one": SplitOptions(embedding=False, head=False),
    "layers": SplitOptions(num_decoder_parts=LAYERS),
    "no_head": SplitOptions(head=False, num_decoder_parts=2),
    "no_embedding": SplitOptions(embedding=False),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantised")
    return quantised(optimised_toy(folder / "optimised"), folder / "quantised")


@pytest.fixture(scope="module", params=SPLITS)
def parts(request, source, tmp_path_factory):
    """The exported model of each split, and what the stage told."""
    return exported(source, tmp_path_factory.mktemp(request.param), SPLITS[request.param])


def run_parts(folder, manifest, ar, feeds):
    """All outputs of all parts, by ONNX Runtime alone."""
    known = dict(feeds)
    for part in manifest.parts:
        session = onnxruntime.InferenceSession(folder / part.graph(ar).file)
        names = [value.name for value in session.get_outputs()]
        values = session.run(names, {value.name: known[value.name] for value in session.get_inputs()})
        known |= dict(zip(names, values, strict=True))
    return known


def test_parts_compute_what_the_whole_does(source, parts):
    exported_model, outcome = parts
    assert outcome.metrics["worst_sqnr_db"] >= 100
    manifest, spec = read_manifest(exported_model.path), read_spec(source.path)
    rng = np.random.default_rng(0)
    for ar in spec.ars:
        feeds = {
            tensor.name: rng.integers(0, 300, tensor.shape)
            if tensor.dtype == "int64"
            else rng.normal(size=tensor.shape).astype(np.float32)
            for tensor in spec.inputs(ar)
        }
        session = onnxruntime.InferenceSession(source.path / graph_file(ar))
        names = [tensor.name for tensor in spec.outputs(ar)]
        got = run_parts(exported_model.path, manifest, ar, feeds)
        for name, expected in zip(names, session.run(names, feeds), strict=True):
            np.testing.assert_allclose(got[name], expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=name)


def test_the_manifest_tells_the_graphs_interface(parts):
    folder = parts[0].path
    manifest = read_manifest(folder)
    for part in manifest.parts:
        assert [graph.ar for graph in part.graphs] == list(manifest.ars)
        for graph in part.graphs:
            model = onnx.load(folder / graph.file)
            onnx.checker.check_model(model, full_check=True)
            for told, values in ((graph.inputs, model.graph.input), (graph.outputs, model.graph.output)):
                found = [(v.name, tuple(d.dim_value for d in v.type.tensor_type.shape.dim)) for v in values]
                assert [(tensor.name, tensor.shape) for tensor in told] == found
            assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert [part.layers for part in manifest.parts if part.kind == "decoder"][-1][1] == LAYERS


def test_vectors_are_what_the_graphs_say(parts):
    folder = parts[0].path
    for part in read_manifest(folder).parts:
        for graph in part.graphs:
            session = onnxruntime.InferenceSession(folder / graph.file)
            with np.load(folder / graph.vectors) as vectors:
                for call in (0, 1):
                    feeds = {tensor.name: vectors[f"{call}/{tensor.name}"] for tensor in graph.inputs}
                    names = [tensor.name for tensor in graph.outputs]
                    for name, values in zip(names, session.run(names, feeds), strict=True):
                        np.testing.assert_array_equal(vectors[f"{call}/{name}"], values)
                past = [tensor.name for tensor in graph.inputs if tensor.name.startswith("past_")]
                assert not any(vectors[f"0/{name}"].any() for name in past)
                assert all(vectors[f"1/{name}"].any() for name in past)


def test_all_graphs_share_one_file_of_weights(source, parts):
    folder = parts[0].path
    assert (folder / "weights.data").read_bytes() == (source.path / "weights.data").read_bytes()
    places: dict[int, set[tuple[str, ...]]] = {}
    for part in read_manifest(folder).parts:
        for graph in part.graphs:
            model = onnx.load(folder / graph.file, load_external_data=False)
            large = [tensor for tensor in model.graph.initializer if tensor.external_data]
            assert all(len(tensor.raw_data) <= 1024 for tensor in model.graph.initializer)
            for tensor in large:
                entries = tuple(f"{entry.key}={entry.value}" for entry in tensor.external_data)
                assert "location=weights.data" in entries
                places.setdefault(graph.ar, set()).add(entries)
    assert places[8] == places[1]


def test_each_part_has_the_encodings_of_its_tensors_in_both_schemas(source, parts):
    folder = parts[0].path
    whole = {name: encodings.read(source.path / name) for name in ("encodings.json", "encodings_v1.json")}
    found: dict[str, set[str]] = {name: set() for name in whole}
    for part in read_manifest(folder).parts:
        for before, file in (("encodings.json", part.encodings), ("encodings_v1.json", part.encodings_v1)):
            here = encodings.read(folder / file)
            assert json.loads((folder / file).read_text())["producer"]["package"] == "octavo"
            found[before] |= set(here.activations) | set(here.params)
        for graph in part.graphs:
            model = onnx.load(folder / graph.file, load_external_data=False)
            scales = {tensor.name: tensor for tensor in model.graph.initializer}
            activations = encodings.read(folder / part.encodings).activations
            for node in model.graph.node:
                if node.op_type == "QuantizeLinear":
                    encoding = activations[node.output[0].removesuffix("_q")]
                    scale, zero_point = (onnx.numpy_helper.to_array(scales[name]) for name in node.input[1:])
                    assert (np.float32(encoding.scale), encoding.zero_point) == (scale, int(zero_point))
    for before, names in found.items():
        every = set(whole[before].activations) | set(whole[before].params)
        inside = {name for name in names if name.startswith("hidden_")}
        # What lies at a border is called hidden_k, and nothing else is lost or has another name.
        assert len(every - names) <= len(inside)
        assert names - every == inside


@pytest.mark.parametrize("residual", [QType.INT16, QType.FLOAT16])
def test_both_sides_of_a_border_are_alike_quantised_or_not(tmp_path, residual):
    recipe = replace(FAST, precision=Precision(residual=residual))
    source = quantised(optimised_toy(tmp_path / "optimised", spike=True), tmp_path / "quantised", recipe)
    model, outcome = exported(source, tmp_path / "exported", SPLITS["layers"])
    assert outcome.metrics["worst_sqnr_db"] >= 100
    parts = read_manifest(model.path).parts
    for number, (left, right) in enumerate(itertools.pairwise(parts)):
        given, taken = left.graph(8).outputs[0], right.graph(8).inputs[0]
        assert given == taken
        assert (given.name, given.dtype) == (f"hidden_{number}", "float32")
        quantised_here = residual is QType.INT16 or number == 0  # rows of the table are no sum
        assert (given.quantised_dtype, given.scale is not None) == (
            ("uint16", True) if quantised_here else (None, False)
        )


@pytest.mark.parametrize("num", [0, LAYERS + 1])
def test_more_parts_than_layers_are_refused(source, tmp_path, num):
    with pytest.raises(InvalidArgument, match=f"{LAYERS} layers cannot be cut into {num} parts"):
        exported(source, tmp_path, SplitOptions(num_decoder_parts=num))
