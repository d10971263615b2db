"""Pictures of a plan: the roof of a device with the plan's steps on it, and tokens a second by batch. Pure."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from octavo import ModelPlan, PlanStep
from octavo_ui.figures import count, duration

PROMPT, DECODE, CHOSEN = "prompt", "decode, by batch", "decode, the batch asked for"
_KINDS, _COLOURS = (PROMPT, DECODE, CHOSEN), ("#d08a2e", "#3b6ea8", "#b3372f")
_INK = "#57606a"
_LEGEND = alt.Legend(title=None, orient="bottom", labelLimit=240)
# A label needs so much room, as a ratio of intensities.
_ROOM = 1.3


def roofline(plan: ModelPlan) -> alt.LayerChart | alt.FacetChart:
    """Operations a second over operations a byte, both in powers of ten: steps lie on the roof or below it."""
    steps = _steps(plan)
    low = 10.0 ** math.floor(math.log10(min([plan.ridge, *(row["intensity"] for row in steps)])) - 0.2)
    high = 10.0 ** math.ceil(math.log10(max([plan.ridge, *(row["intensity"] for row in steps)])) + 0.2)
    roof = [
        {"intensity": low, "rate": low * plan.bandwidth},
        {"intensity": plan.ridge, "rate": plan.peak},
        {"intensity": high, "rate": plan.peak},
    ]
    rates = [low * plan.bandwidth, plan.peak]
    x = alt.X(
        "intensity:Q",
        scale=alt.Scale(type="log", domain=[low, high]),
        title="operations a byte",
        axis=alt.Axis(format="~s", values=_powers(low, high)),
    )
    y = alt.Y(
        "rate:Q",
        scale=alt.Scale(type="log"),
        title="operations a second",
        axis=alt.Axis(format="~s", values=_powers(*rates)),
    )
    line = alt.Chart(alt.Data(values=roof)).mark_line(color=_INK, strokeWidth=2).encode(x=x, y=y)
    ridge = (
        alt.Chart(alt.Data(values=[{"intensity": plan.ridge, "label": f"ridge {plan.ridge:.0f}"}]))
        .mark_rule(color=_INK, strokeDash=[3, 4])
        .encode(x="intensity:Q", tooltip="label:N")
    )
    points = (
        alt.Chart(alt.Data(values=steps))
        .mark_circle(size=80, opacity=1)
        .encode(
            x="intensity:Q",
            y="rate:Q",
            color=alt.Color("kind:N", scale=alt.Scale(domain=list(_KINDS), range=list(_COLOURS)), legend=_LEGEND),
            tooltip=["kind:N", "batch:Q", "bound:N", "intensity:Q", "least time:N", "tokens/s at most:N"],
        )
    )
    labels = (
        alt.Chart(alt.Data(values=_apart([row for row in steps if row["kind"] == DECODE])))
        .mark_text(align="left", dx=7, dy=9, fontSize=11, color=_INK)
        .encode(x="intensity:Q", y="rate:Q", text="batch:Q")
    )
    return alt.layer(line, ridge, points, labels).properties(height=360)


def ceilings(plan: ModelPlan) -> alt.Chart:
    """The most tokens a second that decoding can give, by batch, up to what fits."""
    rows = [
        {"batch": step.batch, "tokens/s": step.tokens_per_s, "bound": step.bound, "least time": duration(step.time_s)}
        for step in plan.decode_by_batch
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=alt.OverlayMarkDef(color=_COLOURS[1]), color=_COLOURS[1])
        .encode(
            x=alt.X("batch:Q", scale=alt.Scale(type="log", base=2), title="sequences in the batch"),
            y=alt.Y("tokens/s:Q", title="tokens/s at most"),
            tooltip=["batch:Q", "tokens/s:Q", "bound:N", "least time:N"],
        )
        .properties(height=360)
    )


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten in a range."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def _apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the rows, in rising order, whose labels do not lie on each other."""
    shown: list[dict[str, Any]] = []
    for row in rows:
        if not shown or row["intensity"] > shown[-1]["intensity"] * _ROOM:
            shown.append(row)
    return shown


def _steps(plan: ModelPlan) -> list[dict[str, Any]]:
    rows = [_row(PROMPT, plan.prefill), *(_row(DECODE, step) for step in plan.decode_by_batch)]
    return [*rows, _row(CHOSEN, plan.decode)]


def _row(kind: str, step: PlanStep) -> dict[str, Any]:
    return {
        "kind": kind,
        "batch": step.batch,
        "intensity": step.intensity,
        "rate": step.flops / step.time_s,
        "bound": step.bound,
        "least time": duration(step.time_s),
        "tokens/s at most": count(step.tokens_per_s),
    }
