"""Draws a plan's roofline as an SVG file. Pure: a plan in, text out; needs no library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

from octavo_common.plan.report import Plan
from octavo_common.plan.roofline import StepCost

WIDTH, HEIGHT = 880, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 28, 64, 92
_INK, _GRID, _ROOF, _PREFILL, _DECODE = "#24292f", "#e4e8ec", "#24292f", "#d08a2e", "#3b6ea8"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axes:
    """Both axes are powers of ten, ``[low, high)`` each."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.x_low) / (self.x_high - self.x_low)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.y_low) / (self.y_high - self.y_low)
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def roofline_svg(plan: Plan) -> str:
    """The roof of a device, and on it (or below, where attention runs at a lower peak) the steps of the plan."""
    costs = [plan.prefill, plan.decode, *plan.decode_by_batch]
    axes = _axes(plan, costs)
    question = plan.question
    devices = (
        question.device.name if question.tensor_parallel == 1 else f"{question.tensor_parallel} {question.device.name}"
    )
    title = f"{question.shape.name} in {question.stored.name} on {devices}"
    context = (
        f"{question.num_prompt_tokens} + {question.num_output_tokens} tokens, keys and values in {question.kv.name}"
    )
    body = [
        _text(_LEFT, 28, title, size=18, weight="600"),
        _text(_LEFT, 48, f"{context}; figures are of one device", size=12),
        *_grid(axes),
        *_roof(plan, axes),
        *_points(plan, axes),
        *_legend(plan),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" role="img"><title>{escape(title)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>' + "".join(body) + "</svg>\n"
    )


def _axes(plan: Plan, costs: list[StepCost]) -> _Axes:
    xs = [plan.ridge, *(cost.intensity for cost in costs)]
    ys = [plan.peak, *(cost.flops / cost.time_s for cost in costs)]
    return _Axes(
        x_low=math.floor(math.log10(min(xs)) - 0.2),
        x_high=math.ceil(math.log10(max(xs)) + 0.2),
        y_low=math.floor(math.log10(min(ys)) - 0.2),
        y_high=math.ceil(math.log10(max(ys)) + 0.2),
    )


def _grid(axes: _Axes) -> list[str]:
    lines: list[str] = []
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for power in range(axes.x_low, axes.x_high + 1):
        x = axes.x(10.0**power)
        lines.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="{_GRID}"/>')
        lines.append(_text(x, bottom + 18, _short(10.0**power), anchor="middle"))
    for power in range(axes.y_low, axes.y_high + 1):
        y = axes.y(10.0**power)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="{_GRID}"/>')
        lines.append(_text(_LEFT - 8, y + 4, _short(10.0**power), anchor="end"))
    lines.append(_text((_LEFT + right) / 2, bottom + 38, "operations a byte", anchor="middle"))
    middle = (_TOP + bottom) / 2
    lines.append(
        f'<text x="20" y="{middle:.1f}" font-size="12" fill="{_INK}" text-anchor="middle" '
        f'transform="rotate(-90 20 {middle:.1f})">operations a second</text>'
    )
    return lines


def _roof(plan: Plan, axes: _Axes) -> list[str]:
    # The slope begins where the lower of the two borders cuts it.
    low = max(10.0**axes.x_low, 10.0**axes.y_low / plan.bandwidth)
    start, ridge = (axes.x(low), axes.y(low * plan.bandwidth)), (axes.x(plan.ridge), axes.y(plan.peak))
    label = f"ridge {plan.ridge:.0f}: {_short(plan.peak)}/s over {_short(plan.bandwidth)}B/s"
    is_left = ridge[0] < WIDTH / 2
    return [
        f'<path d="M{start[0]:.1f} {start[1]:.1f}L{ridge[0]:.1f} {ridge[1]:.1f}H{WIDTH - _RIGHT}" '
        f'fill="none" stroke="{_ROOF}" stroke-width="2"/>',
        f'<path d="M{ridge[0]:.1f} {ridge[1]:.1f}V{HEIGHT - _BOTTOM}" stroke="{_ROOF}" stroke-dasharray="3 4"/>',
        _text(ridge[0] + (6 if is_left else -6), ridge[1] - 10, label, anchor="start" if is_left else "end"),
    ]


def _points(plan: Plan, axes: _Axes) -> list[str]:
    *powers, last = plan.decode_by_batch
    drawn = [_point(axes, cost, _DECODE, f"{cost.batch}", radius=4) for cost in powers]
    # The last may be close to the one before it.
    drawn.append(_point(axes, last, _DECODE, f"{last.batch}", radius=4, above=True))
    drawn.append(_point(axes, plan.prefill, _PREFILL, "prompt", radius=6))
    return drawn


def _point(axes: _Axes, cost: StepCost, colour: str, label: str, *, radius: int, above: bool = False) -> str:
    x, y = axes.x(cost.intensity), axes.y(cost.flops / cost.time_s)
    told = (
        f"batch {cost.batch}: {cost.intensity:.2f} operations a byte, bound by {cost.bound}, "
        f"at least {cost.time_s * 1e3:.3g} ms, at most {cost.tokens_per_s:.4g} tokens/s"
    )
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" stroke="#ffffff">'
        f"<title>{told}</title></circle>" + _text(x + radius + 3, y + 14, label, size=11)
    )


def _legend(plan: Plan) -> list[str]:
    y = HEIGHT - 24
    prompt = f"a step with {plan.question.batch} x {plan.question.num_prompt_tokens} prompt tokens"
    decode = f"a decode step at {plan.decode_context} tokens, by batch"
    return [
        f'<circle cx="{_LEFT + 6}" cy="{y - 4}" r="6" fill="{_PREFILL}"/>',
        _text(_LEFT + 18, y, prompt),
        f'<circle cx="{_LEFT + 346}" cy="{y - 4}" r="4" fill="{_DECODE}"/>',
        _text(_LEFT + 358, y, decode),
    ]


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "400") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{_INK}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _short(value: float) -> str:
    """1 T, 10 G, 0.1: a number with the letter of its thousand."""
    for size, letter in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"
