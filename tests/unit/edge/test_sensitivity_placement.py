"""Mixed precision by sensitivity, on the hand-written decoder."""

import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from unit.edge.quant_toy import W8, batches, logits, plan, quantise_toy, sequences, write_toy

from octavo_edge.graph.metrics import mean_kl, sqnr_db
from octavo_edge.quant.grid import INT4
from octavo_edge.quant.mixed import choose
from octavo_edge.quant.placement import WeightKind, place
from octavo_edge.quant.plan import QuantPlan, WeightPlan
from octavo_edge.quant.qdq import packed_bytes
from octavo_edge.quant.rounding import round_weight
from octavo_edge.quant.sensitivity import Candidate, most_worth, sensitivities
from octavo_edge.quant.topology import Topology
from octavo_edge.recipe import MixedPrecision, SensitivityMetric, Unit

TOKENS = sequences(3, 4, length=8)
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
def uneven(toy, tmp_path_factory):
    """Some weights have an outlier in every channel, which leaves the others few of 16 steps."""
    folder = tmp_path_factory.mktemp("uneven")
    model = onnx.load(toy / "ar8.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in ("up_0", "down_1"):
            values = numpy_helper.to_array(tensor).copy()
            values[:, 0] *= 8
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, folder / "ar8.onnx")
    (folder / "spec.json").write_bytes((toy / "spec.json").read_bytes())
    return folder


@pytest.fixture(scope="module")
def candidates(graph):
    return candidates_of(graph)


def candidates_of(graph):
    found = []
    for weight in place(graph).weights:
        if weight.kind is WeightKind.BLOCK:
            values = graph.constant(weight.name)

            def rounded(values=values):
                return round_weight(values, 0, W4, None).floats()

            found.append(Candidate(name=weight.name, weights={weight.name: rounded}, extra_bytes=values.size // 2))
    return found


def replaced(toy, folder, names, candidates):
    """The float graph with some candidates' weights rounded, as ONNX itself writes it."""
    weights = {name: make for c in candidates if c.name in names for name, make in c.weights.items()}
    model = onnx.load(toy / "ar8.onnx")
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name](), tensor.name))
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "ar8.onnx")
    (folder / "spec.json").write_bytes((toy / "spec.json").read_bytes())
    return logits(folder, TOKENS, ars=[8])


@pytest.mark.parametrize("piece_bytes", [1, 10_000, 1 << 30])
def test_the_loss_of_one_weight_is_that_of_a_graph_with_it_alone_rounded(toy, graph, candidates, tmp_path, piece_bytes):
    losses = sensitivities(graph, candidates, batches(toy, TOKENS), lambda *_: None, piece_bytes=piece_bytes)
    exact = logits(toy, TOKENS, ars=[8])
    for candidate in candidates[::5]:
        got = replaced(toy, tmp_path, [candidate.name], candidates)
        assert losses[candidate.name] == pytest.approx(mean_kl(exact, got), rel=1e-3)


def test_noise_to_signal_is_what_decibels_say(toy, graph, candidates, tmp_path):
    feeds = batches(toy, TOKENS)
    losses = sensitivities(graph, candidates, feeds, lambda *_: None, metric=SensitivityMetric.SQNR)
    exact, got = logits(toy, TOKENS, ars=[8]), replaced(toy, tmp_path, ["down_1"], candidates)
    ratios = [10 ** (-sqnr_db(left, right) / 10) for left, right in zip(exact, got, strict=True)]
    assert losses["down_1"] == pytest.approx(np.mean(ratios), rel=1e-3)


@pytest.mark.parametrize("by", list(Unit))
def test_the_choice_is_that_of_measuring_every_choice(uneven, tmp_path, by):
    """Of all sets of two weights, or of one layer, that may rise, the one that leaves the least divergence."""
    count = 2 if by is Unit.WEIGHT else 1
    step = MixedPrecision(num_windows=len(TOKENS), by=by, max_share=1.0, max_count=count)
    graph = Topology(uneven / "ar8.onnx")
    candidates = candidates_of(graph)
    # Weights of one size, so that the number alone decides how many rise.
    placement = place(graph)
    same = [w for w in placement.weights if w.name.startswith(("gate", "up", "down")) or by is Unit.LAYER]
    placement = replace(placement, weights=tuple(same))
    choice = choose(graph, placement, plan(W4), step, batches(uneven, TOKENS), lambda *_: None)
    names = {w.name for w in placement.weights if w.kind is WeightKind.BLOCK}
    units = {name: {name} for name in names}
    if by is Unit.LAYER:
        units = {f"layer {layer}": {n for n in names if n.endswith(f"_{layer}")} for layer in (0, 1)}
    exact = logits(uneven, TOKENS, ars=[8])
    left = {}
    for raised in itertools.combinations(sorted(units), count):
        kept = names - set().union(*(units[unit] for unit in raised))
        left[raised] = mean_kl(exact, replaced(uneven, tmp_path, kept, candidates))
    assert tuple(sorted(row.name for row in choice.rows if row.raised)) == min(left, key=left.__getitem__)
    assert set(choice.exceptions) == set().union(*(units[row.name] for row in choice.rows if row.raised))
    assert choice == choose(graph, placement, plan(W4), step, batches(uneven, TOKENS), lambda *_: None)


def test_the_extra_bytes_are_those_of_the_files(toy, graph, tmp_path):
    step = MixedPrecision(max_share=0.5)
    choice = choose(graph, place(graph), plan(W4), step, batches(toy, TOKENS), lambda *_: None)
    sizes = []
    for label, exceptions in (("plain", {}), ("mixed", choice.exceptions)):
        asked = replace(plan(W4), exceptions=exceptions)
        _, quantised = quantise_toy(toy, tmp_path / label, asked, TOKENS)
        stored = (packed_bytes(w) for w in quantised.weights.values())
        scales = (np.size(getattr(w.encoding, "scales", 0)) * 4 for w in quantised.weights.values())
        sizes.append(sum(map(len, stored)) + sum(scales))
    assert sizes[1] - sizes[0] == sum(row.extra_bytes for row in choice.rows if row.raised) > 0


def test_bits_where_they_count_beat_the_same_bytes_where_they_do_not(toy, graph, candidates, tmp_path):
    losses = sensitivities(graph, candidates, batches(toy, sequences(3, 8, length=8)), lambda *_: None)
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
    assert most_worth(losses, candidates, budget_bytes=1000, max_count=2) == ["d", "b"]
