"""The pictures of the console: what a reader sees in them is true."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta

from octavo import StepRecord
from octavo_ui import charts

START = datetime(2026, 1, 1, tzinfo=UTC)
POOL = 64


def record(step: int, micros: int, used: int, cached: int) -> StepRecord:
    return StepRecord(
        step=step,
        time=START + timedelta(microseconds=micros),
        duration_ms=1.0,
        num_decode_tokens=1,
        num_prompt_tokens=0,
        num_running=step,
        num_waiting=0,
        num_preempted=0,
        num_free_blocks=POOL - used - cached,
        num_cached_blocks=cached,
        num_used_blocks=used,
    )


# Two steps in the first millisecond, one in the next, three in a later one.
RECORDS = [
    record(n, micros, used=n, cached=2 * n)
    for n, micros in enumerate([100, 900, 1000, 5_000, 5_400, 5_999, 9_000_000], start=1)
]


def values(chart) -> list[dict]:
    return chart.to_dict()["data"]["values"]


def test_the_stack_of_blocks_is_never_higher_than_the_pool():
    heights: dict[float, int] = defaultdict(int)
    for row in values(charts.block_usage(RECORDS)):
        # A chart's time has milliseconds and no more, whatever form it is given in.
        heights[int(row["time"])] += row["blocks"]
    assert len(heights) == 4
    assert set(heights.values()) == {POOL}


def test_of_steps_in_one_millisecond_the_last_is_shown():
    start_ms = int(START.timestamp() * 1000)
    used = {
        row["time"] - start_ms: row["blocks"] for row in values(charts.block_usage(RECORDS)) if row["state"] == "used"
    }
    assert used == {0: 2, 1: 3, 5: 6, 9000: 7}
    running = [row["sequences"] for row in values(charts.load(RECORDS)) if row["kind"] == "running"]
    assert running == [2, 3, 6, 7]
