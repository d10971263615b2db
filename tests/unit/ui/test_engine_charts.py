"""The pictures of an engine: what a reader sees in them is true."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from octavo import Pool, PoolSequence, StepRecord
from octavo_ui import engine_charts
from octavo_ui.engine_charts import CACHED, FREE, OTHERS, OWNER_COLOURS, label

START = datetime(2026, 1, 1, tzinfo=UTC)


def sequence(number: int, blocks: tuple[int, ...], choice: int = 0) -> PoolSequence:
    return PoolSequence(
        job_id=f"0190aaaa-0000-7000-8000-{number:012d}",
        choice=choice,
        phase="running",
        num_tokens=1,
        num_prompt_tokens=1,
        num_computed_tokens=0,
        num_blocks=len(blocks),
        num_shared_blocks=0,
        blocks=blocks,
    )


def pool(num_blocks: int, sequences: list[PoolSequence], cached: set[int], each: int = 1) -> Pool:
    """The pool of these tables, as a worker sums it up."""
    holders = Counter(block for one in sequences for block in one.blocks)
    cells = range(-(-num_blocks // each))
    inside = [range(cell * each, min(num_blocks, (cell + 1) * each)) for cell in cells]
    owners = [next((n for n, one in enumerate(sequences) if set(one.blocks) & set(blocks)), -1) for blocks in inside]
    return Pool(
        step=9,
        num_blocks=num_blocks,
        block_size=16,
        num_free_blocks=num_blocks - len(holders) - len(cached),
        num_cached_blocks=len(cached),
        num_used_blocks=len(holders),
        num_shared_blocks=sum(count > 1 for count in holders.values()),
        num_unused_slots=0,
        blocks_per_cell=each,
        cell_used=tuple(sum(b in holders for b in blocks) for blocks in inside),
        cell_cached=tuple(sum(b in cached for b in blocks) for blocks in inside),
        cell_shared=tuple(sum(holders[b] > 1 for b in blocks) for blocks in inside),
        cell_owner=tuple(owners),
        sequences=tuple(sequences),
        num_sequences_left_out=0,
    )


def cells_of(chart) -> list[dict]:
    return chart.to_dict()["data"]["values"]


def test_every_block_is_one_square_of_its_own_kind():
    sequences = [sequence(1, (0, 1, 2)), sequence(2, (0, 1, 5), choice=1)]
    rows = cells_of(engine_charts.pool_map(pool(300, sequences, cached={7, 8})))
    assert len(rows) == len({(row["x"], row["y"]) for row in rows}) == 300
    kinds = Counter(row["kind"] for row in rows)
    first, second = map(label, sequences)
    assert kinds == {first: 3, second: 1, CACHED: 2, FREE: 294}
    assert second.endswith("#1")
    shared = [row for row in rows if row["shared"]]
    assert [row["block"] for row in shared] == ["0", "1"]
    assert {row["holder"] for row in shared} == {f"{first}, {second}"}


def test_holders_beyond_the_colours_are_others():
    sequences = [sequence(n, (n,)) for n in range(len(OWNER_COLOURS) + 3)]
    rows = cells_of(engine_charts.pool_map(pool(20, sequences, cached=set())))
    assert sum(row["kind"] == OTHERS for row in rows) == 3
    chart = engine_charts.pool_map(pool(20, sequences, cached=set())).to_dict()
    scale = chart["layer"][0]["encoding"]["color"]["scale"]
    assert len(scale["domain"]) == len(scale["range"]) == len(OWNER_COLOURS) + 3
    assert {row["kind"] for row in rows} <= set(scale["domain"])


def test_a_square_of_several_blocks_says_which_and_what_they_hold():
    rows = cells_of(engine_charts.pool_map(pool(10, [sequence(1, (4, 5))], cached={0}, each=4)))
    assert [row["block"] for row in rows] == ["0 to 3", "4 to 7", "8 to 9"]
    assert [row["holds"] for row in rows] == ["0 used, 1 cached", "2 used, 0 cached", "0 used, 0 cached"]


def record(step: int, **figures: int) -> StepRecord:
    zeros = dict.fromkeys(
        ("num_decode_tokens", "num_prompt_tokens", "num_running", "num_waiting", "num_preempted", "num_free_blocks",
         "num_cached_blocks", "num_used_blocks"), 0,
    )  # fmt: skip
    return StepRecord(
        step=step, time=START + timedelta(milliseconds=300 * step), duration_ms=1.0, **{**zeros, **figures}
    )


def values(chart) -> list[dict]:
    return chart.to_dict()["data"]["values"]


def test_the_bars_of_a_step_add_up_to_its_tokens():
    records = [record(n, num_decode_tokens=n, num_prompt_tokens=10 * n) for n in range(1, 400)]
    heights = Counter()
    for row in values(engine_charts.composition(records)):
        heights[row["step"]] += row["count"]
    assert heights == {n: 11 * n for n in range(160, 400)}


def test_preemptions_are_told_apart_by_where_blocks_went():
    rows = values(engine_charts.preemptions([record(1, num_preempted=3, num_swapped=1), record(2)]))
    assert [(row["step"], row["kind"], row["count"]) for row in rows] == [
        (1, "recomputed", 2), (1, "swapped", 1), (2, "recomputed", 0), (2, "swapped", 0),
    ]  # fmt: skip


def test_the_hit_rate_of_a_second_is_over_all_that_was_asked_in_it():
    records = [
        record(1, num_prefix_asked_tokens=100, num_prefix_found_tokens=0),
        record(2, num_prefix_asked_tokens=300, num_prefix_found_tokens=200),
        record(3),
        record(4, num_prefix_asked_tokens=10, num_prefix_found_tokens=10),
        record(9),
    ]
    start_ms = int(START.timestamp() * 1000)
    assert [(row["time"] - start_ms, row["rate"]) for row in values(engine_charts.hit_rate(records))] == [
        (0, 0.5), (1000, 1.0),
    ]  # fmt: skip
