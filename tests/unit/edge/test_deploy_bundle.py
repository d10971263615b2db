"""The deploy stage: whatever the table's precision and whoever delivers it, the bundle replays its vectors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from unit.edge.bundled import deployed
from unit.edge.exported import FAST, exported, optimised_toy, quantised
from unit.edge.toy_graph import toy_weights

from octavo_device.bundle import TablePlace, read_bundle
from octavo_device.table import EmbeddingTable
from octavo_edge.graph.blob import write_blob
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.recipe import Precision, QType
from octavo_edge.target import CompiledAndRun, CompileResult
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget


class Embedding(OnnxRuntimeTarget):
    """Delivers graphs with their weights inside, and no file that holds the embedding's table."""

    def compile(self, model, options, out):
        graphs = {}
        for part in read_manifest(model.path).parts:
            if part.kind != "embedding":
                graphs[part.name] = {graph.ar: {"file": f"inside/{graph.file}"} for graph in part.graphs}
                for graph in part.graphs:
                    (out / "inside").mkdir(exist_ok=True)
                    onnx.save(onnx.load(model.path / graph.file), out / "inside" / graph.file)
        write_blob(out, runtime="onnxruntime", graphs=graphs)
        return CompileResult(outcome=CompiledAndRun())


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return optimised_toy(tmp_path_factory.mktemp("optimised"))


@pytest.mark.parametrize("qtype", [QType.INT8, QType.INT16, QType.FLOAT16])
@pytest.mark.parametrize("target", [OnnxRuntimeTarget, Embedding])
def test_the_table_is_the_graphs_whoever_delivers_it(graphs, tmp_path, qtype, target):
    recipe = replace(FAST, precision=Precision(embedding=qtype))
    model, _ = exported(quantised(graphs, tmp_path / "quantised", recipe), tmp_path / "exported")
    bundle, outcome = deployed(model, tmp_path, target())
    assert outcome.metrics["num_outputs_replayed"] == 14
    assert outcome.metrics["replay_worst_sqnr_db"] >= 120
    assert ((bundle.path / "embedding.bin").exists(), (bundle.path / "weights.data").exists()) == (
        (True, False) if target is Embedding else (False, True)
    )
    place = read_bundle(bundle.path).embedding
    assert place is not None
    rows = EmbeddingTable(bundle.path, place).rows(np.arange(place.shape[0]))
    exact = toy_weights(vocab=place.shape[0])["embed"]
    step = {QType.INT8: np.abs(exact).max() / 127, QType.INT16: np.ptp(exact) / 65535, QType.FLOAT16: 0.0}[qtype]
    np.testing.assert_allclose(rows, exact, rtol=0, atol=0.51 * step + 1e-6)


def test_rows_of_four_bits_lie_two_a_byte(tmp_path):
    integers = np.arange(-8, 8).reshape(4, 4)
    pairs = (integers[:, ::2] & 0xF) | ((integers[:, 1::2] & 0xF) << 4)
    scales = np.array([1, 2, 4, 8], np.float32)
    (tmp_path / "table").write_bytes(b"????" + pairs.astype(np.uint8).tobytes())
    (tmp_path / "scales").write_bytes(scales.tobytes())
    place = TablePlace(file="table", offset=4, dtype="int4", shape=(4, 4), scales_file="scales")
    ids = np.array([3, 0])
    np.testing.assert_array_equal(EmbeddingTable(tmp_path, place).rows(ids), (integers * scales[:, None])[ids])


def test_the_metadata_tells_every_tensor_and_file(graphs, tmp_path):
    model, _ = exported(quantised(graphs, tmp_path / "quantised"), tmp_path / "exported")
    bundle, _ = deployed(model, tmp_path)
    document = json.loads((bundle.path / "metadata.json").read_text())
    names = {path.relative_to(bundle.path).as_posix() for path in bundle.path.rglob("*") if path.is_file()}
    assert set(document["files"]) == names - {"metadata.json"}
    assert document["outcome"] == "compiled+run"
    assert {"onnxruntime", "numpy", "python", "octavo"} <= set(document["versions"])
    for part in document["parts"]:
        for graph in part["graphs"].values():
            assert graph["vectors"] in names
            assert graph.get("file") in names or part["kind"] == "embedding"
            caches = [tensor for tensor in graph["inputs"] if tensor["name"].startswith("past_")]
            assert all(tensor["quantised_dtype"] == "int8" and tensor["scale"] > 0 for tensor in caches)
    # The bundle needs nothing of the place where it was made.
    moved = shutil.move(bundle.path, tmp_path / "moved")
    assert str(tmp_path) not in (moved / "metadata.json").read_text()
    assert read_bundle(moved).eos_token_ids == (1,)
