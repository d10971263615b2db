"""Mixed precision: which layers of a graph get more bits than the others, by what they lose with fewer.

Pure of stages and files: from a plan and batches to the weights that leave the plan. The measuring is in sensitivity.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from octavo_edge.quant.grid import Floats
from octavo_edge.quant.placement import Placement, Weight, WeightKind
from octavo_edge.quant.plan import QuantPlan, WeightPlan
from octavo_edge.quant.planning import weight_plan
from octavo_edge.quant.rounding import round_weight
from octavo_edge.quant.segments import Arrays
from octavo_edge.quant.sensitivity import Candidate, most_worth, sensitivities
from octavo_edge.quant.topology import Topology
from octavo_edge.recipe import Granularity, MixedPrecision, Unit

_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One candidate in the report's table; ``loss`` is in nats, or noise to signal, as the metric is."""

    name: str
    num_weights: int
    loss: float
    extra_bytes: int
    raised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The weights that leave the plan, with their own plans, and how that was found."""

    exceptions: Mapping[str, WeightPlan]
    rows: tuple[Row, ...]

    def table(self) -> list[dict[str, object]]:
        """The rows as JSON has them, in the graph's order."""
        return [asdict(row) for row in self.rows]


def choose(
    graph: Topology,
    placement: Placement,
    plan: QuantPlan,
    step: MixedPrecision,
    batches: Sequence[Arrays],
    on_piece: Callable[[int, int], None],
) -> Choice:
    """Measure all layers (or weights) of the blocks on the step's windows, and raise those that are most worth it.

    Weights are rounded to nearest on MinMax scales here: which layers are sensitive does not hang on the search.

    Raises:
        CannotQuantise: Blocks do not fit a weight.
    """
    low, high = plan.weights.get(WeightKind.BLOCK), weight_plan(step.to)
    if low is None:
        return Choice(exceptions={}, rows=())
    groups: dict[str, list[Weight]] = {}
    for weight in placement.weights:
        if weight.kind is WeightKind.BLOCK:
            groups.setdefault(_unit(weight.name, step.by), []).append(weight)
    candidates = [_candidate(graph, name, weights, low, high) for name, weights in groups.items()]
    losses = sensitivities(graph, candidates, batches[: step.num_windows], on_piece, metric=step.metric)
    budget = math.floor(step.max_share * sum(candidate.extra_bytes for candidate in candidates))
    raised = set(most_worth(losses, candidates, budget_bytes=budget, max_count=step.max_count))
    rows = tuple(
        Row(
            name=candidate.name,
            num_weights=len(candidate.weights),
            loss=losses[candidate.name],
            extra_bytes=candidate.extra_bytes,
            raised=candidate.name in raised,
        )
        for candidate in candidates
    )
    names = [weight.name for group in raised for weight in groups[group]]
    return Choice(exceptions={name: high for name in sorted(names)}, rows=rows)


def stored_bytes(plan: WeightPlan, num_channels: int, num_inputs: int) -> int:
    """Bytes of a weight's integers and scales."""
    size = (num_channels * num_inputs * plan.grid.bits + 7) // 8
    match plan.granularity:
        case Granularity.PTQ:
            return size + _SCALE_BYTES
        case Granularity.PCQ:
            return size + num_channels * _SCALE_BYTES
        case Granularity.BQ:
            return size + num_channels * (num_inputs // (plan.block_size or num_inputs)) * _SCALE_BYTES
        case Granularity.LPBQ:
            return size + num_channels * (num_inputs // (plan.block_size or num_inputs) + _SCALE_BYTES)


def _unit(name: str, by: Unit) -> str:
    """What a weight changes precision with: itself, or its layer, which is the first number in its name."""
    number = re.search(r"(?:^|[._])(\d+)(?:[._]|$)", name)
    return f"layer {number.group(1)}" if by is Unit.LAYER and number else name


def _candidate(graph: Topology, name: str, weights: Sequence[Weight], low: WeightPlan, high: WeightPlan) -> Candidate:
    def rounding(weight: Weight) -> Callable[[], Floats]:
        return lambda: round_weight(graph.constant(weight.name), weight.channel_axis, low, None).floats()

    extra = 0
    for weight in weights:
        shape = graph.constants[weight.name].dims
        num_channels = shape[weight.channel_axis]
        num_inputs = math.prod(shape) // num_channels
        extra += stored_bytes(high, num_channels, num_inputs) - stored_bytes(low, num_channels, num_inputs)
    return Candidate(name=name, weights={weight.name: rounding(weight) for weight in weights}, extra_bytes=extra)
