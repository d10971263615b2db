"""The golden target on an exported model: it delivers the graphs as they are, and has run them."""

import pytest
from unit.edge.exported import exported, optimised_toy, quantised

from octavo_common.errors import InvalidArgument
from octavo_edge.graph.blob import read_blob
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.graph.summary import summarise
from octavo_edge.target import CompileOptions, options_by_target
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return exported(quantised(optimised_toy(folder / "optimised"), folder / "quantised"), folder / "exported")[0]


def test_it_delivers_what_it_has_run(model, tmp_path):
    target = OnnxRuntimeTarget()
    graphs = [graph for part in read_manifest(model.path).parts for graph in part.graphs]
    assert target.missing() == []
    assert [reason for graph in graphs for reason in target.check(summarise(model.path / graph.file))] == []
    result = target.compile(model, CompileOptions(), tmp_path)
    assert str(result.outcome) == "compiled+run"
    assert result.metrics["num_graphs"] == 4
    assert result.metrics["worst_sqnr_db"] >= 60
    blob = read_blob(tmp_path)
    assert blob.runtime == "onnxruntime"
    assert {part: sorted(by_ar) for part, by_ar in blob.graphs.items()} == {"decoder_1_of_1": [1, 8], "head": [1, 8]}
    named = {entry["file"] for by_ar in blob.graphs.values() for entry in by_ar.values()} | {"weights.data"}
    assert named == set(blob.files) == {path.name for path in tmp_path.iterdir()} - {"blob.json"}


def test_it_has_no_options():
    with pytest.raises(InvalidArgument, match="no option speed"):
        OnnxRuntimeTarget().check_options(CompileOptions(values={"speed": "1"}))


def test_options_say_which_target_they_are_for():
    assert options_by_target(["a"], ["soc=69", "a.mode=3"]) == {"a": CompileOptions(values={"soc": "69", "mode": "3"})}
    both = options_by_target(["a", "b"], ["a.soc=69", "b.level=v1.2"])
    assert both == {"a": CompileOptions(values={"soc": "69"}), "b": CompileOptions(values={"level": "v1.2"})}
    with pytest.raises(InvalidArgument, match="for which target"):
        options_by_target(["a", "b"], ["soc=69"])
    with pytest.raises(InvalidArgument, match="no key=value"):
        options_by_target(["a"], ["soc"])
