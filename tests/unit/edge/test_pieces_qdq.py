"""Running a graph piece by piece against running it whole."""

import numpy as np
import pytest
from unit.edge.quant_toy import batches, plan, quantise_toy, sequences, write_toy

from octavo_device.spec import read_spec
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.quant.batches import BatchStore, next_inputs, texts_behind_nothing
from octavo_edge.quant.segments import cut, run_by_pieces
from octavo_edge.quant.topology import Topology

TEXTS = sequences(5, 3)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float")
    write_toy(folder)
    return folder


@pytest.mark.parametrize("piece_bytes", [1, 4096, 1 << 30])
@pytest.mark.parametrize("form", ["float", "qdq"])
def test_pieces_give_what_the_whole_gives(toy, tmp_path, form, piece_bytes):
    folder = toy
    if form == "qdq":
        folder = tmp_path / "qdq"
        quantise_toy(toy, folder, plan(), sequences(1, 4))
    feeds = batches(toy, TEXTS)
    got = [{} for _ in feeds]
    run_by_pieces(
        Topology(folder / "ar8.onnx"),
        feeds,
        lambda number, name, values: got[number].update({name: values}),
        lambda *_: None,
        piece_bytes=piece_bytes,
    )
    whole = OrtGraph(folder / "ar8.onnx", num_threads=1)
    for ours, inputs in zip(got, feeds, strict=True):
        theirs = whole.run(inputs)
        assert ours.keys() == theirs.keys()
        for name, values in theirs.items():
            # Fusions across a border are lost; quantised, a rounding may then fall to the other side.
            np.testing.assert_allclose(ours[name], values, atol=1e-4 if form == "float" else 2e-2)


def test_pieces_partition_the_nodes_and_carry_what_is_read_later(toy):
    graph = Topology(toy / "ar8.onnx")
    segments = cut(graph, [5, 17, 40])
    assert [(s.start, s.stop) for s in segments] == [(0, 5), (5, 17), (17, 40), (40, len(graph.nodes))]
    given = set(graph.inputs)
    for segment in segments:
        assert set(segment.reads) <= given
        given |= set(segment.gives)
    assert set(graph.outputs) <= given


def test_stored_inputs_are_those_of_a_sequence_that_was_run(toy, tmp_path):
    spec = read_spec(toy)
    exact = batches(toy, TEXTS[:1])
    graph = OrtGraph(toy / "ar8.onnx", num_threads=1)
    first = texts_behind_nothing(tmp_path / "first", spec, [TEXTS[0][:8]])
    second = BatchStore(tmp_path / "second", spec, 8)
    second.add(next_inputs(spec, graph.run(first[0]), 8, TEXTS[0][8:]))
    for ours, theirs in zip((first[0], second[0]), exact, strict=True):
        assert set(ours) == set(theirs)
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values)
            assert ours[name].dtype == values.dtype
