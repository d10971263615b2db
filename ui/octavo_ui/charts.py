"""Pictures of the fleet. Pure: records in, charts out."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from octavo import JobEvent, StepRecord

STATES = ("used", "cached", "free")
COLOURS = ("#3b6ea8", "#9dbfe3", "#e7ecf2")


def block_usage(records: Sequence[StepRecord]) -> alt.Chart:
    """Blocks of the pool over time, stacked: in use, kept for prefix hits, free."""
    rows = [
        {"time": time_ms, "blocks": count, "state": state}
        for time_ms, record in _by_millisecond(records)
        for state, count in zip(
            STATES, (record.num_used_blocks, record.num_cached_blocks, record.num_free_blocks), strict=True
        )
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_area(interpolate="step-after")
        .encode(
            x=alt.X("time:T", title=None),
            y=alt.Y("blocks:Q", stack="zero", title="blocks"),
            color=alt.Color("state:N", scale=alt.Scale(domain=STATES, range=COLOURS), sort=STATES, title=None),
            order=alt.Order("order:Q"),
        )
        .transform_calculate(order="indexof(['used', 'cached', 'free'], datum.state)")
        .properties(height=220)
    )


def load(records: Sequence[StepRecord]) -> alt.Chart:
    """Sequences that run and wait, step by step."""
    rows = [
        {"time": time_ms, "sequences": count, "kind": kind}
        for time_ms, record in _by_millisecond(records)
        for kind, count in (("running", record.num_running), ("waiting", record.num_waiting))
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("time:T", title=None),
            y=alt.Y("sequences:Q", title="sequences"),
            color=alt.Color(
                "kind:N", scale=alt.Scale(domain=["running", "waiting"], range=["#3b6ea8", "#d08a2e"]), title=None
            ),
        )
        .properties(height=160)
    )


def _by_millisecond(records: Sequence[StepRecord]) -> list[tuple[int, StepRecord]]:
    """The last record of each millisecond: finer times are one to a chart, and stacks would pile up on each other."""
    last = {int(record.time.timestamp() * 1000): record for record in records if record.time is not None}
    return sorted(last.items(), key=lambda item: item[0])


def timeline(events: Sequence[JobEvent]) -> alt.Chart:
    """A job's events on a line, in seconds from the first."""
    timed = [(event, event.time) for event in events if event.time is not None]
    start = min((time for _, time in timed), default=None)
    rows = [
        {"seconds": (time - start).total_seconds(), "event": event.event, "fence": event.fence}
        for event, time in timed
        if start is not None
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("seconds:Q", title="seconds since acceptance"))
    points = base.mark_point(filled=True, size=90).encode(
        color=alt.Color("event:N", title=None), tooltip=["event:N", "seconds:Q", "fence:Q"]
    )
    return points.properties(height=90)
