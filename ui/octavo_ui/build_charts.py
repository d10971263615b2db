"""Pictures of one build: what its stages and its layers have left of the signal. Pure: values in, charts out.

Signal to noise is in decibels, and more is better; where nothing at all is lost it is infinite, and told as "exact".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from octavo_ui.build_report import LayerLoss, StageEntry, sqnr_metrics

BLUE, ORANGE, GREY = "#3b6ea8", "#d08a2e", "#c9d1da"
_KIND_COLOURS = (BLUE, ORANGE, "#4c956c", "#b3372f", "#7b5ea7", "#2a9d9d", "#c2608f")
# How far bars go of what is infinite: beyond all that 32-bit floats can tell apart.
_EXACT_DB = 150.0
# With room for the figures beside them.
_WIDEST_DB = 170.0
_STAGE_SCALE = alt.Scale(domain=[0, _WIDEST_DB], nice=False)
_BAR_PX, _AXIS_PX, _HEIGHT_PX = 26, 60, 340
_LEGEND = alt.Legend(title=None, orient="bottom", columns=4, symbolLimit=24)


def stage_sqnr(entries: Sequence[StageEntry]) -> alt.LayerChart | alt.FacetChart:
    """A bar of each stage that measures it: as long as the least of what it has measured, the rest as dots."""
    rows: list[dict[str, Any]] = []
    dots: list[dict[str, Any]] = []
    for entry in entries:
        metrics = sqnr_metrics(entry.stage)
        for place, (name, value) in enumerate(metrics.items()):
            row = {"stage": entry.title, "metric": name, "drawn": drawn_db(value), "told": told_db(value)}
            (dots if place else rows).append(row)
    y = alt.Y("stage:N", sort=[row["stage"] for row in rows], title=None, axis=alt.Axis(labelLimit=240))
    x = alt.X("drawn:Q", title="SQNR, dB", axis=alt.Axis(values=list(range(0, 175, 25))), scale=_STAGE_SCALE)
    tooltip = [alt.Tooltip("stage:N"), alt.Tooltip("metric:N"), alt.Tooltip("told:N", title="measured")]
    bars = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, tooltip=tooltip)
    others = alt.Chart(alt.Data(values=dots)).encode(x=x, y=y, tooltip=tooltip)
    return alt.layer(
        bars.mark_bar(height=16, color=BLUE),
        others.mark_point(shape="stroke", angle=90, size=160, color=ORANGE, strokeWidth=2, opacity=0.8),
        bars.mark_text(align="right").encode(x=alt.datum(_WIDEST_DB), text="told:N"),
    ).properties(height=_BAR_PX * len(rows) + _AXIS_PX)


def cache_by_layer(losses: Sequence[LayerLoss], logits_db: float | None = None) -> alt.LayerChart | alt.FacetChart:
    """Lines of the layers' keys and values; what is left at the logits, where it counts, is a dashed line."""
    rows = [_row(loss) for loss in losses]
    lines = _by_layer(rows).mark_line(point=alt.OverlayMarkDef(size=36), opacity=1)
    layers: list[Any] = [lines.encode(color=_colour(["keys", "values"]))]
    if logits_db is not None and math.isfinite(logits_db):
        # Noise adds up from layer to layer: the lines begin above it.
        first = min((loss.layer for loss in losses), default=0)
        at_end = [{"layer": first, "drawn": drawn_db(logits_db), "told": f"logits {told_db(logits_db)}"}]
        rule = alt.Chart(alt.Data(values=at_end)).encode(y="drawn:Q", tooltip=alt.Tooltip("told:N", title="at the end"))
        text = rule.encode(x="layer:Q", text="told:N").mark_text(
            align="left", baseline="bottom", dx=4, dy=-3, color="#57606a"
        )
        layers += [rule.mark_rule(strokeDash=[5, 4], color="#57606a"), text]
    return alt.layer(*layers).properties(height=_HEIGHT_PX)


def weights_by_layer(losses: Sequence[LayerLoss]) -> alt.Chart:
    """A dot of each weight, in the colour of its kind: layers of other precision or of hard weights stand out."""
    kinds = sorted({loss.what for loss in losses})
    chart = _by_layer([_row(loss) for loss in losses]).mark_circle(size=46, opacity=0.85)
    return chart.encode(color=_colour([_short(kind) for kind in kinds])).properties(height=_HEIGHT_PX)


def sensitivity(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """What rounding each layer (or weight) alone costs at the logits; those that were given more bits stand out."""
    kinds = ["more bits", "as the others"]
    values = [
        {"name": row["name"], "loss": float(row["loss"]), "kind": kinds[0 if row["raised"] else 1]} for row in rows
    ]
    return (
        alt.Chart(alt.Data(values=values))
        .mark_bar()
        .encode(
            x=alt.X(
                "name:N",
                sort=[row["name"] for row in values],
                title=None,
                axis=alt.Axis(labelOverlap=True, labelAngle=0),
            ),
            y=alt.Y("loss:Q", title="loss at the logits", axis=alt.Axis(format="~g")),
            color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[ORANGE, BLUE]), legend=_LEGEND),
            tooltip=["name:N", alt.Tooltip("loss:Q", format=".3g"), "kind:N"],
        )
        .properties(height=_HEIGHT_PX)
    )


def told_db(value: float) -> str:
    """Decibels in words."""
    return f"{value:.1f} dB" if math.isfinite(value) else "exact" if value > 0 else "no signal"


def drawn_db(value: float) -> float:
    """Decibels as far as they are drawn: between nothing and exact."""
    return 0.0 if math.isnan(value) else min(max(value, 0.0), _EXACT_DB)


def _row(loss: LayerLoss) -> dict[str, Any]:
    return {
        "layer": loss.layer,
        "what": _short(loss.what),
        "drawn": drawn_db(loss.sqnr_db),
        "told": told_db(loss.sqnr_db),
    }


def _short(what: str) -> str:
    """A weight's own name in its layer: ``self_attn.q_proj`` is ``q_proj``."""
    return what.rpartition(".")[2]


def _by_layer(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("layer:Q", title="layer", axis=alt.Axis(format="d", tickMinStep=1), scale=alt.Scale(nice=False)),
        y=alt.Y("drawn:Q", title="SQNR, dB", scale=alt.Scale(zero=False)),
        tooltip=["layer:Q", "what:N", alt.Tooltip("told:N", title="left")],
    )


def _colour(kinds: Sequence[str]) -> alt.Color:
    return alt.Color("what:N", scale=alt.Scale(domain=list(kinds), range=list(_KIND_COLOURS)), legend=_LEGEND)
