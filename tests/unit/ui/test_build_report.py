"""Reports of builds as the console reads them, and its pictures of them: what a reader sees is true."""

from __future__ import annotations

import math

import pytest

import octavo
from octavo import BuildGate, BuildStage, TensorLoss
from octavo_edge.report import BuildReport, TargetEntry, build_to_json
from octavo_edge.report import StageEntry as Written
from octavo_edge.stage import Gate, StageOutcome, StageReport
from octavo_edge.stage import TensorLoss as WrittenLoss
from octavo_ui import build_charts, build_report
from octavo_ui.build_report import StageEntry
from octavo_ui.views.build_order import numbers, pairs


def written(**outcome) -> StageReport:
    return StageReport(
        stage="quantise",
        kind="quantised",
        source_digest="a" * 64,
        output_digest="b" * 64,
        seconds=1.5,
        peak_rss_bytes=300,
        size_bytes=200,
        outcome=StageOutcome(**outcome),
    )


def document(*stages: Written, targets=()) -> dict:
    """As the builder writes it."""
    return build_to_json(
        BuildReport(
            model="tiny", source_digest="c" * 64, targets=targets, settings={}, outcome="", seconds=2.0, stages=stages
        )
    )


def test_a_report_is_read_as_its_builder_wrote_it():
    report = written(
        metrics={"sqnr_db": 31.0, "worst_sqnr_db": math.inf},
        warnings=("few windows",),
        unsupported_ops=("Foo",),
        worst=(WrittenLoss(tensor="key_1", sqnr_db=12.5),),
        details={"outcome": "compiled+run"},
    )
    gates = (Gate(metric="sqnr_db", at_least=40.0), Gate(metric="top1_ratio", at_least=0.9, advisory=True))
    entry = Written(report=report, cached=True, gates=gates, target="device")
    targets = (TargetEntry(name="device", outcome="failed: no", failed=True),)
    read = build_report.from_document(document(entry, targets=targets))
    assert read.targets == (build_report.TargetOutcome(name="device", outcome="failed: no", failed=True),)
    (found,) = read.stages
    assert found.title == "quantise for device" and found.unsupported_ops == ("Foo",)
    assert found.stage == BuildStage(
        stage="quantise",
        cached=True,
        duration_s=1.5,
        size_bytes=200,
        peak_memory_bytes=300,
        metrics={"sqnr_db": 31.0, "worst_sqnr_db": math.inf},
        gates=(
            BuildGate(limit="sqnr_db >= 40", value=31.0, passes=False),
            BuildGate(limit="top1_ratio >= 0.9", value=None, passes=False, advisory=True),
        ),
        warnings=("few windows",),
        worst=(TensorLoss(tensor="key_1", sqnr_db=12.5),),
        target="device",
    )
    assert found.at_fault == found.stage.worst


def test_tensors_are_at_fault_only_where_a_gate_stops_the_build():
    worst = (TensorLoss(tensor="logits", sqnr_db=1.0),)
    for gate, at_fault in (
        (BuildGate(limit="x >= 1", value=2.0, passes=True), ()),
        (BuildGate(limit="x >= 1", value=0.0, passes=False, advisory=True), ()),
        (BuildGate(limit="x >= 1", value=None, passes=False), worst),
    ):
        stage = BuildStage(
            stage="s", cached=False, duration_s=0, size_bytes=0, peak_memory_bytes=0, gates=(gate,), worst=worst
        )
        assert StageEntry(stage=stage).at_fault == at_fault


@pytest.mark.parametrize("change", [{"format": "x"}, {"version": 99}, {"version": None}])
def test_a_document_that_is_no_report_of_this_version_is_refused(change):
    with pytest.raises(build_report.NotAReport):
        build_report.from_document(document() | change)


def entry(details=None, worst=(), **metrics) -> StageEntry:
    stage = BuildStage(
        stage="quantise", cached=False, duration_s=1, size_bytes=1, peak_memory_bytes=1, metrics=metrics, worst=worst
    )
    return StageEntry(stage=stage, details=details or {})


def test_losses_of_layers_come_from_the_tables_or_else_from_the_worst():
    tables = {
        "outputs_sqnr_db": {"key_10": 20.0, "value_2": 30.0, "logits": 5.0, "key_2": "inf"},
        "weights_sqnr_db": {
            "layers.2.mlp.down_proj.weight": 44.0,
            "layers.10.self_attn.q_proj.1.weight": 41.0,
            "layers.10.self_attn.q_proj.0.weight": 40.0,
            "embed_tokens.weight": 90.0,
            "lm_head.weight": 45.0,
        },
    }
    found = [(loss.layer, loss.what, loss.sqnr_db) for loss in build_report.cache_losses(entry(tables))]
    assert found == [(2, "keys", math.inf), (2, "values", 30.0), (10, "keys", 20.0)]
    weights = [(loss.layer, loss.what, loss.sqnr_db) for loss in build_report.weight_losses(entry(tables))]
    # Of a weight that is cut into heads, the worst head.
    assert weights == [(2, "mlp.down_proj", 44.0), (10, "self_attn.q_proj", 40.0)]
    worst = tuple(
        TensorLoss(tensor=name, sqnr_db=db)
        for name, db in (("key_3 (ar1)", 120.0), ("key_3 (ar8)", 119.0), ("logits (ar1)", 1.0), ("monkey_1", 0.0))
    )
    found = [(loss.layer, loss.what, loss.sqnr_db) for loss in build_report.cache_losses(entry(worst=worst))]
    assert found == [(3, "keys", 119.0)]


def values(chart, layer: int | None = None) -> list[dict]:
    drawn = chart.to_dict()
    return (drawn if layer is None else drawn["layer"][layer])["data"]["values"]


def test_a_stages_bar_is_the_least_that_it_measured():
    stages = [entry(sqnr_db=30.0, centred_sqnr_db=33.0, ppl=7.0), entry(worst_sqnr_db=math.inf), entry(size_bytes=3.0)]
    chart = build_charts.stage_sqnr(stages)
    assert [(row["metric"], row["drawn"], row["told"]) for row in values(chart, 0)] == [
        ("sqnr_db", 30.0, "30.0 dB"),
        ("worst_sqnr_db", build_charts._EXACT_DB, "exact"),
    ]
    assert [row["metric"] for row in values(chart, 1)] == ["centred_sqnr_db"]


def test_what_is_no_number_is_drawn_within_the_picture():
    for value, drawn, told in ((math.nan, 0.0, "no signal"), (-3.0, 0.0, "-3.0 dB"), (-math.inf, 0.0, "no signal")):
        assert (build_charts.drawn_db(value), build_charts.told_db(value)) == (drawn, told)


def test_the_line_of_the_logits_is_drawn_where_it_is_measured():
    losses = build_report.cache_losses(entry({"outputs_sqnr_db": {"key_0": 20.0, "value_0": 30.0}}))
    assert len(build_charts.cache_by_layer(losses, 18.0).to_dict()["layer"]) == 3
    assert len(build_charts.cache_by_layer(losses, math.inf).to_dict()["layer"]) == 1


def test_layers_with_more_bits_stand_out():
    rows = [
        {"name": "layer 0", "num_weights": 7, "loss": 0.5, "extra_bytes": 9, "raised": True},
        {"name": "layer 1", "num_weights": 7, "loss": "0.1", "extra_bytes": 9, "raised": False},
    ]
    assert [(row["name"], row["loss"], row["kind"]) for row in values(build_charts.sensitivity(rows))] == [
        ("layer 0", 0.5, "more bits"),
        ("layer 1", 0.1, "as the others"),
    ]


def test_options_are_read_line_by_line():
    assert pairs(" attention = sha \n\nparts=2\n--flag\na=b=c", "options") == {
        "attention": "sha",
        "parts": "2",
        "flag": "true",
        "a": "b=c",
    }
    assert numbers("128, 1,") == [128, 1] and numbers(" ") == []


@pytest.mark.parametrize("text", ["=1", "a=1\na=2", "a=1\n--a=2"])
def test_options_that_are_none_are_refused(text):
    with pytest.raises(octavo.InvalidArgumentError, match="option"):
        pairs(text, "options")


@pytest.mark.parametrize("text", ["one", "1.5", "8 1"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(octavo.InvalidArgumentError, match="whole numbers"):
        numbers(text)
