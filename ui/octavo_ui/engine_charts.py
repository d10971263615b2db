"""Pictures of one engine: its pool of blocks, and what its last steps did. Pure: values in, charts out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from octavo import Pool, PoolSequence, StepRecord

FREE, CACHED, OTHERS = "free", "cached", "others"
_FREE_COLOUR, _CACHED_COLOUR, _OTHERS_COLOUR = "#e7ecf2", "#9dbfe3", "#57606a"
OWNER_COLOURS = (
    "#3b6ea8", "#d08a2e", "#4c956c", "#b3372f", "#7b5ea7", "#2a9d9d", "#c2608f", "#8c6d31", "#5b7083", "#94a13a",
)  # fmt: skip
# Room for the picture of a pool, in pixels, and cells side by side.
_ROOM_PX, _LEGEND_PX = 1000, 24
_FEWEST, _MOST = 24, 128
_BUCKET_MS = 1000
_STEPS_SHOWN = 240
_LEGEND = alt.Legend(title=None, orient="bottom")


def label(sequence: PoolSequence) -> str:
    """How a sequence is called in pictures: the end of its job's id, which tells jobs of one minute apart."""
    name = sequence.job_id[-8:]
    return f"{name} #{sequence.choice}" if sequence.choice else name


def pool_map(pool: Pool) -> alt.LayerChart | alt.FacetChart:
    """The pool, a square a cell: free, cached, or in the colour of who holds most of it; shared ones have a dot."""
    # About three times as wide as it is high.
    width = max(_FEWEST, min(_MOST, math.isqrt(3 * len(pool.cell_owner))))
    rows = _cells(pool, width)
    owners = [label(sequence) for sequence in pool.sequences[: len(OWNER_COLOURS)]]
    domain = [FREE, CACHED, *owners, OTHERS]
    colours = [_FREE_COLOUR, _CACHED_COLOUR, *OWNER_COLOURS[: len(owners)], _OTHERS_COLOUR]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:O", axis=None, scale=alt.Scale(paddingInner=0.12)),
        y=alt.Y("y:O", axis=None, scale=alt.Scale(paddingInner=0.12)),
        tooltip=["block:N", "holds:N", "holder:N"],
    )
    cells = base.mark_rect().encode(
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=domain, range=colours),
            legend=alt.Legend(title=None, orient="bottom", columns=7, symbolLimit=14),
        )
    )
    dots = base.mark_circle(size=12, color="#ffffff", opacity=1).transform_filter("datum.shared > 0")
    # The height is that of all, the legend included.
    height = -(-len(rows) // width) * _ROOM_PX // width + (2 + len(domain) // 7) * _LEGEND_PX
    return alt.layer(cells, dots).properties(height=height)


def _cells(pool: Pool, width: int) -> list[dict[str, Any]]:
    holders = _holders(pool)
    rows: list[dict[str, Any]] = []
    for number, owner in enumerate(pool.cell_owner):
        used, cached = pool.cell_used[number], pool.cell_cached[number]
        first = number * pool.blocks_per_cell
        last = min(first + pool.blocks_per_cell, pool.num_blocks) - 1
        rows.append(
            {
                "x": number % width,
                "y": number // width,
                "kind": _kind(pool, owner, used, cached),
                "shared": pool.cell_shared[number],
                "block": f"{first}" if first == last else f"{first} to {last}",
                "holds": f"{used} used, {cached} cached" if last > first else "",
                "holder": holders.get(number) or (label(pool.sequences[owner]) if owner >= 0 else ""),
            }
        )
    return rows


def _kind(pool: Pool, owner: int, used: int, cached: int) -> str:
    if 0 <= owner < len(OWNER_COLOURS):
        return label(pool.sequences[owner])
    if owner >= 0 or used:
        return OTHERS
    return CACHED if cached else FREE


def _holders(pool: Pool) -> Mapping[int, str]:
    """Everybody who holds a block, where cells are blocks."""
    names: dict[int, list[str]] = {}
    for sequence in pool.sequences:
        for block in sequence.blocks:
            names.setdefault(block, []).append(label(sequence))
    return {block: ", ".join(holders) for block, holders in names.items()}


def composition(records: Sequence[StepRecord]) -> alt.Chart:
    """Tokens of the last steps, stacked: of rows that decode, and of prompts."""
    return _by_step(records, {"decode": "num_decode_tokens", "prompt": "num_prompt_tokens"}, "tokens")


def preemptions(records: Sequence[StepRecord]) -> alt.Chart:
    """Sequences that the last steps preempted, stacked: to be computed again, and to host memory."""
    rows = [
        {"step": record.step, "next": record.step + 1, "kind": kind, "count": count}
        for record in records[-_STEPS_SHOWN:]
        for kind, count in (
            ("recomputed", record.num_preempted - record.num_swapped),
            ("swapped", record.num_swapped),
        )
    ]
    return _stacked(rows, ["recomputed", "swapped"], ["#b3372f", "#d08a2e"], "preempted")


def hit_rate(records: Sequence[StepRecord]) -> alt.Chart:
    """Of the tokens that could have been in the prefix cache, the part that was: by second."""
    asked: dict[int, int] = {}
    found: dict[int, int] = {}
    for record in records:
        if record.time is not None and record.num_prefix_asked_tokens:
            second = int(record.time.timestamp() * 1000) // _BUCKET_MS * _BUCKET_MS
            asked[second] = asked.get(second, 0) + record.num_prefix_asked_tokens
            found[second] = found.get(second, 0) + record.num_prefix_found_tokens
    rows = [{"time": second, "rate": found[second] / asked[second], "asked": asked[second]} for second in sorted(asked)]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=alt.OverlayMarkDef(color="#4c956c"), interpolate="step-after", color="#4c956c")
        .encode(
            x=alt.X("time:T", title=None),
            y=alt.Y("rate:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"), title="prefix hits"),
            tooltip=["time:T", alt.Tooltip("rate:Q", format=".1%"), "asked:Q"],
        )
        .properties(height=240)
    )


def _by_step(records: Sequence[StepRecord], kinds: Mapping[str, str], title: str) -> alt.Chart:
    rows = [
        {"step": record.step, "next": record.step + 1, "kind": kind, "count": getattr(record, name)}
        for record in records[-_STEPS_SHOWN:]
        for kind, name in kinds.items()
    ]
    return _stacked(rows, list(kinds), ["#3b6ea8", "#d08a2e"], title)


def _stacked(rows: list[dict[str, Any]], kinds: list[str], colours: list[str], title: str) -> alt.Chart:
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("step:Q", bin="binned", title="step", scale=alt.Scale(zero=False), axis=alt.Axis(format="d")),
            x2="next:Q",
            y=alt.Y("count:Q", stack="zero", title=title, axis=alt.Axis(format="d", tickMinStep=1)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=colours), legend=_LEGEND),
            tooltip=["step:Q", "kind:N", "count:Q"],
        )
        .properties(height=240)
    )
