"""The metrics' names, buckets and labels, against the page that users read and the series they are taken from."""

from __future__ import annotations

import re
from pathlib import Path

from octavo_common.telemetry import names

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text()


def test_the_page_lists_exactly_the_metrics_that_there_are() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (counter|gauge|histogram) \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    listed = {(name, kind, tuple(re.findall(r"`([^`]+)`", labels)), what) for name, kind, labels, what in rows}
    assert listed == {(m.name, m.kind.value, m.labels, m.description) for m in names.ALL_METRICS}


def test_the_page_lists_the_buckets() -> None:
    listed = {}
    for left, right in re.findall(r"^\| (`[^|]+`) \| ([\d. e+]+) \|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", left):
            listed[name] = [float(bound) for bound in right.split()]
    for metric in names.ALL_METRICS:
        shown = [float(f"{bound:g}") for bound in metric.buckets]
        assert listed.get(metric.name, []) == shown


def test_buckets_are_those_of_the_series_that_dashboards_know() -> None:
    text = {
        names.TIME_TO_FIRST_TOKEN: ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
        names.INTER_TOKEN_LATENCY: ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80",
        names.E2E_REQUEST_LATENCY: ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680",
        names.ITERATION_TOKENS: "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
        names.REQUEST_PROMPT_TOKENS: "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000 200000 500000",
        names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN: ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10",
        names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN: ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5",
    }
    for metric, series in text.items():
        assert list(metric.buckets) == [float(bound) for bound in series.split()]
    assert names.GEN_AI_SERVER_REQUEST_DURATION.buckets[0] == 0.01
    assert names.GEN_AI_SERVER_REQUEST_DURATION.buckets[-1] == 81.92
    assert names.REQUEST_QUEUE_TIME.buckets == names.REQUEST_DECODE_TIME.buckets == names.E2E_REQUEST_LATENCY.buckets
