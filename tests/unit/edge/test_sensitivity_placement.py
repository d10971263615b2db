"""Mixed precision by sensitivity, on the hand-written decoder."""

import onnx
import pytest
from onnx import numpy_helper
from unit.edge.quant_toy import W8, batches, logits, plan, quantise_toy, sequences, write_toy

from octavo_edge.graph.metrics import mean_kl
from octavo_edge.quant.grid import INT4
from octavo_edge.quant.placement import WeightKind, place
from octavo_edge.quant.plan import QuantPlan, WeightPlan
from octavo_edge.quant.rounding import round_weight
from octavo_edge.quant.sensitivity import Candidate, most_worth, sensitivities
from octavo_edge.quant.topology import Topology

W4 = WeightPlan(grid=INT4)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float")
    write_toy(folder)
    return folder


@pytest.fixture(scope="module")
def graph(toy):
    return Topology(toy / "ar8.onnx")


@pytest.fixture(scope="module")
def candidates(graph):
    found = []
    for weight in place(graph).weights:
        if weight.kind is WeightKind.BLOCK:
            values = graph.constant(weight.name)

            def rounded(values=values):
                return round_weight(values, 0, W4, None).floats()

            found.append(Candidate(name=weight.name, weights={weight.name: rounded}, extra_bytes=values.size // 2))
    return found


def test_the_loss_of_one_weight_is_that_of_a_graph_with_it_alone_rounded(toy, graph, candidates, tmp_path):
    tokens = sequences(3, 4, length=8)
    losses = sensitivities(graph, candidates, batches(toy, tokens), lambda _: None)
    exact = logits(toy, tokens, ars=[8])
    for candidate in candidates[:3]:
        model = onnx.load(toy / "ar8.onnx")
        for tensor in model.graph.initializer:
            if tensor.name == candidate.name:
                tensor.CopyFrom(numpy_helper.from_array(candidate.weights[tensor.name](), tensor.name))
        onnx.save(model, tmp_path / "ar8.onnx")
        (tmp_path / "spec.json").write_bytes((toy / "spec.json").read_bytes())
        assert losses[candidate.name] == pytest.approx(mean_kl(exact, logits(tmp_path, tokens, ars=[8])), rel=1e-3)


def test_bits_where_they_count_beat_the_same_bytes_where_they_do_not(toy, graph, candidates, tmp_path):
    losses = sensitivities(graph, candidates, batches(toy, sequences(3, 8, length=8)), lambda _: None)
    budget = sum(candidate.extra_bytes for candidate in candidates) // 3
    best = most_worth(losses, candidates, budget_bytes=budget)
    worst = most_worth({name: -loss for name, loss in losses.items()}, candidates, budget_bytes=budget)
    exact, held_out = logits(toy, sequences(2, 6)), sequences(2, 6)
    divergence = {}
    for label, chosen in (("best", best), ("worst", worst)):
        base = plan(W4, grid=None, cache=None)
        asked = QuantPlan(activations=base.activations, weights=base.weights, exceptions={name: W8 for name in chosen})
        quantise_toy(toy, tmp_path / label, asked, sequences(1, 8))
        divergence[label] = mean_kl(exact, logits(tmp_path / label, held_out))
    assert divergence["best"] < 0.7 * divergence["worst"]


def test_the_budget_holds():
    def one(name, size):
        return Candidate(name=name, weights={}, extra_bytes=size)

    candidates = [one("a", 100), one("b", 60), one("c", 50), one("d", 10)]
    losses = {"a": 1.0, "b": 0.9, "c": 0.1, "d": 0.5}
    assert most_worth(losses, candidates, budget_bytes=110) == ["d", "b"]
    assert most_worth(losses, candidates, budget_bytes=0) == []
    assert set(most_worth(losses, candidates, budget_bytes=1000)) == {"a", "b", "c", "d"}
