"""Reports: what is kept is read back, JSON is strict, the page shows all of it and runs nothing; delivery is whole."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_common.errors import InvalidArgument
from octavo_edge.deliver import check_place, deliver
from octavo_edge.recipe import Gates
from octavo_edge.report import BuildReport, StageEntry, TargetEntry, build_to_json, report_from_json, report_to_json
from octavo_edge.report_page import page
from octavo_edge.stage import Gate, StageOutcome, StageReport, TensorLoss, gates_of

words = st.text(max_size=20)
numbers = st.floats(allow_nan=False)
outcomes = st.builds(
    StageOutcome,
    metrics=st.dictionaries(words, numbers, max_size=4),
    warnings=st.lists(words, max_size=2).map(tuple),
    unsupported_ops=st.lists(words, max_size=2).map(tuple),
    versions=st.dictionaries(words, words, max_size=2),
    worst=st.lists(st.builds(TensorLoss, tensor=words, sqnr_db=numbers), max_size=3).map(tuple),
    details=st.dictionaries(words, st.lists(st.dictionaries(words, st.integers() | words, max_size=2), max_size=2)),
)
reports = st.builds(
    StageReport,
    stage=words,
    kind=words,
    source_digest=words,
    output_digest=words,
    seconds=st.floats(0, 1e6),
    peak_rss_bytes=st.integers(0, 2**40),
    size_bytes=st.integers(0, 2**40),
    outcome=outcomes,
)


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def strict(document):
    return json.loads(json.dumps(document), parse_constant=refuse)


@settings(deadline=None)
@given(reports)
def test_what_is_kept_is_read_back(report):
    assert report_from_json(strict(report_to_json(report))) == report


def test_numbers_of_numpy_and_without_limit_are_kept():
    outcome = StageOutcome(metrics={"sqnr_db": math.inf, "mean_kl_nats": np.float32(0.5), "num_windows": np.int64(3)})
    report = StageReport(
        stage="s",
        kind="k",
        source_digest="",
        output_digest="",
        seconds=0.0,
        peak_rss_bytes=0,
        size_bytes=0,
        outcome=outcome,
    )
    again = report_from_json(strict(report_to_json(report)))
    assert again.outcome.metrics == {"sqnr_db": math.inf, "mean_kl_nats": 0.5, "num_windows": 3.0}


class Texts(HTMLParser):
    """The words of a page, and its tags."""

    def __init__(self):
        super().__init__()
        self.words, self.tags, self.open = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def built(entries, outcome="compiled+run"):
    return BuildReport(
        model="<script>alert(1)</script>",
        source_digest="ab" * 32,
        targets=[TargetEntry(name="onnxruntime", outcome=outcome, failed=False)],
        settings={"recipe": "w8a16"},
        outcome=outcome,
        seconds=1.5,
        stages=entries,
    )


@settings(deadline=None)
@given(st.lists(reports, max_size=3))
def test_the_page_is_whole_and_runs_nothing(found):
    entries = [StageEntry(report=report, cached=True, gates=(Gate(metric="sqnr_db", at_least=20),)) for report in found]
    texts = Texts()
    texts.feed(page(strict(build_to_json(built(entries)))))
    assert texts.open == []
    assert not texts.tags & {"script", "link", "img", "iframe"}
    told = " ".join(texts.words)
    assert "<script>alert(1)</script>" in told
    assert told.count("not measured") + told.count("holds") + told.count("fails") >= len(found)


def test_a_gate_that_warns_is_told_apart_from_one_that_stops():
    report = report_from_json(
        {
            "stage": "quantise",
            "kind": "QuantisedGraph",
            "source_digest": "",
            "output_digest": "",
            "seconds": 1.0,
            "peak_rss_bytes": 1,
            "size_bytes": 1,
            "outcome": {
                "metrics": {"sqnr_db": 25.0},
                "warnings": ["few windows"],
                "unsupported_ops": [],
                "versions": {},
                "worst": [{"tensor": "layers.3", "sqnr_db": "-inf"}],
                "details": {},
            },
        }
    )
    gates = (Gate(metric="sqnr_db", at_least=20), Gate(metric="sqnr_db", at_least=30, advisory=True))
    document = build_to_json(built([StageEntry(report=report, cached=False, gates=gates)]))
    assert [gate["passes"] for gate in document["stages"][0]["gates"]] == [True, False]
    html = page(document)
    assert "holds" in html
    assert "does not hold, a warning" in html
    assert "few windows" in html


def test_limits_of_a_recipe_become_gates():
    gates = gates_of(Gates(max_mean_kl_nats=0.01, min_sqnr_db=20.0))
    assert [str(gate) for gate in gates] == ["mean_kl_nats <= 0.01", "sqnr_db >= 20"]


REPORT = json.dumps(build_to_json(built([])))


def test_a_delivery_replaces_one_before(tmp_path):
    (tmp_path / "a").write_text("a")
    for name in ("x", "y"):
        deliver(tmp_path / "out", copies={f"deep/{name}": tmp_path / "a"}, texts={"report.json": REPORT})
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["a", "out/deep/y", "out/report.json"]


def test_a_delivery_that_fails_leaves_what_was_there(tmp_path):
    deliver(tmp_path / "out", copies={}, texts={"report.json": REPORT})
    with pytest.raises(FileNotFoundError):
        deliver(tmp_path / "out", copies={"x": tmp_path / "absent"}, texts={"report.json": "{}"})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "report.json").read_text() == REPORT


def test_what_is_no_build_is_not_replaced(tmp_path):
    check_place(tmp_path / "new")
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgument, match="something else"):
        check_place(tmp_path)
    with pytest.raises(InvalidArgument, match="something else"):
        check_place(tmp_path / "thesis.txt")
    with pytest.raises(InvalidArgument, match="nothing may be written"):
        check_place(tmp_path / "thesis.txt" / "out")
    with pytest.raises(InvalidArgument, match="mounted"):
        check_place(Path("/proc"))
