"""Where quantisers go in a decoder's graph."""

import pytest
from unit.edge.toy_graph import LAYERS, write_toy

from octavo_edge.quant.placement import Role, WeightKind, place
from octavo_edge.quant.topology import Topology, corresponding_names


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder)
    return Topology(folder / "ar8.onnx")


def producer_ops(graph, tensors):
    return {graph.nodes[graph.producer[name]].op_type for name in tensors if name in graph.producer}


def test_the_inside_of_every_norm_stays_in_floating_point(graph):
    placement = place(graph)
    num_norms = 2 * LAYERS + 1
    assert len(placement.floats) == 7 * num_norms
    for op in ("Pow", "ReduceMean", "Sqrt", "Reciprocal"):
        outputs = {node.output[0] for node in graph.nodes if node.op_type == op}
        assert outputs <= placement.floats, op
    norm_weights = {name for name in graph.constants if "norm" in name}
    assert norm_weights <= set(placement.constants)
    # What the norms' insides are computed with stays too: 1/128, 2 and eps. The attention's factor does not.
    assert len(placement.constants) == num_norms + 1


def test_every_float_tensor_is_quantised_once_or_left_on_purpose(graph):
    placement = place(graph)
    grouped = [name for group in placement.groups for name in group.tensors]
    assert len(grouped) == len(set(grouped))
    every = {name for name in (*graph.inputs, *graph.producer) if graph.is_float(name)}
    assert set(grouped) | placement.floats == every


def test_what_goes_into_a_cache_and_what_comes_out_share_an_encoding(graph):
    caches = [group for group in place(graph).groups if group.role is Role.CACHE]
    assert len(caches) == 2 * LAYERS
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            (group,) = [g for g in caches if f"past_{kind}_{layer}" in g.tensors]
            assert f"{kind}_{layer}" in group.tensors
            assert "Concat" in producer_ops(graph, group.tensors)


def test_residual_sums_are_known_and_no_other_sum_is(graph):
    residual = [group for group in place(graph).groups if group.role is Role.RESIDUAL]
    assert len(residual) == 2 * LAYERS
    assert all(producer_ops(graph, group.tensors) == {"Add"} for group in residual)
    floats = place(graph, float_residual=True).floats
    assert {name for group in residual for name in group.tensors} <= floats


def test_weights_are_told_apart(graph):
    kinds = {weight.name: weight.kind for weight in place(graph).weights}
    assert kinds.pop("embed") is WeightKind.EMBEDDING
    assert kinds.pop("head") is WeightKind.HEAD
    assert len(kinds) == 7 * LAYERS and set(kinds.values()) == {WeightKind.BLOCK}


def test_graphs_of_other_sizes_correspond_although_their_names_differ(graph):
    other = Topology(graph.path.with_name("ar1.onnx"))
    names = corresponding_names(graph, other)
    assert names["past_key_0"] == "past_key_0" and names["key_1"] == "key_1" and names["down_1"] == "down_1"
    made = [name for name in other.producer if name.startswith("val_")]
    assert made and all(names[name] != name for name in made)
    for name in other.producer:
        assert other.nodes[other.producer[name]].op_type == graph.nodes[graph.producer[names[name]]].op_type


def test_graphs_that_do_not_correspond_are_told_by_node(graph):
    other = Topology(graph.path.with_name("ar1.onnx"))
    other.nodes[5].op_type = "Sin"
    with pytest.raises(ValueError, match=r"node 5: .*\(Sin\) of ar1.onnx is "):
        corresponding_names(graph, other)
