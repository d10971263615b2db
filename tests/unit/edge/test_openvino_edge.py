"""OpenVINO's representation: our integers in it, one file of weights, and its CPU run beside ONNX Runtime's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import openvino
import pytest
from unit.edge.exported_models import compiled

from octavo_common.errors import InvalidArgument
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.graph.summary import summarise_model
from octavo_edge.parts.vectors import read_vectors
from octavo_edge.target import CompiledAndRun
from octavo_edge.targets.openvino import OpenVinoTarget
from octavo_edge.toolchain.process import LibraryFailed, ask


@pytest.fixture(scope="module")
def blobs(exports, tmp_path_factory):
    """What it makes of both models, and what it tells."""
    return {
        name: compiled(OpenVinoTarget(), exports[name], tmp_path_factory.mktemp(name), num_threads="1")
        for name in ("w8", "w4")
    }


@pytest.mark.parametrize("recipe", ["w8", "w4"])
def test_it_computes_what_onnx_runtime_computes(blobs, recipe):
    _, result = blobs[recipe]
    assert isinstance(result.outcome, CompiledAndRun)
    assert result.metrics["same_graph_worst_sqnr_db"] > 100
    # What the golden run loses by rounding activations stands between the two.
    assert result.metrics["golden_logits_sqnr_db"] > 20
    assert any("floating point" in warning for warning in result.warnings)


@pytest.mark.parametrize(("recipe", "kind"), [("w8", "i8"), ("w4", "i4")])
def test_weights_are_our_integers(exports, blobs, recipe, kind):
    model, (out, _) = exports[recipe], blobs[recipe]
    graph = read_manifest(model.path).parts[1].graph(8)
    proto = onnx.load(str(model.path / graph.file))
    ours = {t.name: t.raw_data for t in proto.graph.initializer if t.name.endswith("proj.weight_q")}
    read = openvino.Core().read_model(out / "decoder_1_of_1_ar8.xml", out / "weights.data")
    found = {node.get_friendly_name(): node for node in read.get_ops() if node.get_friendly_name() in ours}
    assert len(ours) == 14 and found.keys() == ours.keys()
    assert {node.get_output_element_type(0).get_type_name() for node in found.values()} == {kind}
    data = (out / "weights.data").read_bytes()
    assert all(integers in data for integers in ours.values())


def test_graphs_of_all_sizes_share_their_weights(blobs):
    out, _ = blobs["w8"]
    blob = json.loads((out / "blob.json").read_text())
    assert blob["runtime"] == "openvino" and set(blob["graphs"]) == {"decoder_1_of_1", "head"}
    entries = [entry for by_ar in blob["graphs"].values() for entry in by_ar.values()]
    assert {entry["weights"] for entry in entries} == {"weights.data"} and len({e["file"] for e in entries}) == 4
    assert sorted(path.name for path in out.iterdir() if path.name != "blob.json") == blob["files"]


# Of whoever has OpenVINO and nothing of ours; apart, since its plug-in leaves a stack for signals that it frees.
# Left to itself it takes bfloat16, and bytes for activations, where those are quick.
RUN = """
import sys
import numpy as np
import openvino
core = openvino.Core()
exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
head = core.compile_model(core.read_model(sys.argv[1], sys.argv[2]), "CPU", exact)
print(int(np.argmax(head(dict(np.load(sys.argv[3])))["logits"])))
"""


def test_what_it_wrote_runs_without_us(exports, blobs, tmp_path):
    model, (out, _) = exports["w8"], blobs["w8"]
    graph = read_manifest(model.path).parts[-1].graph(1)
    for inputs, expected in read_vectors(model.path, graph):
        np.savez(tmp_path / "inputs.npz", **inputs)
        command = [sys.executable, "-I", "-c", RUN, out / "head_ar1.xml", out / "weights.data", tmp_path / "inputs.npz"]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(run.stdout) == np.argmax(expected["logits"])


def test_a_signal_reaches_its_handler_after_a_build(blobs):
    """The library leaves a stack for signals that it frees; where it ran here the next one would end the process."""
    assert blobs
    caught = []
    before = signal.signal(signal.SIGUSR1, lambda *_: caught.append(True))
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught


def test_a_crash_of_the_library_is_its_own(exports, tmp_path):
    order = {"source": str(exports["w8"].path), "out": str(tmp_path), "graphs": [["head", 1, "/absent"]]}
    with pytest.raises(LibraryFailed, match=r"OpenVINO: it failed: .*absent"):
        ask("octavo_edge.toolchain.openvino_build", order | {"num_threads": 1}, what="OpenVINO")


def test_it_writes_beside_what_it_makes_and_nowhere_else(exports, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    out, result = compiled(OpenVinoTarget(), exports["w8"], tmp_path / "here", num_threads="1")
    assert isinstance(result.outcome, CompiledAndRun)
    assert list(out.parent.iterdir()) == [out]


def test_an_option_that_it_does_not_know_is_an_error(exports, tmp_path):
    with pytest.raises(InvalidArgument, match="no option 'threads'") as raised:
        compiled(OpenVinoTarget(), exports["w8"], tmp_path, threads="2")
    assert raised.value.param == "options.threads" and "num_threads" in raised.value.hint


def test_it_names_the_node_that_it_cannot_take():
    text = """<ir_version: 10, opset_import: ["" : 21]>
    agraph (float[4] x) => (float[4] y) { [strange] y = Celu(x) }"""
    (why,) = OpenVinoTarget().check(summarise_model(onnx.parser.parse_model(text)))
    assert why.op == "Celu" and "openvino has no such operator" in str(why)
