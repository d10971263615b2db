"""Which parts a model is cut into: names, layers, what each takes and gives. Knows no graph."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_common.errors import InvalidArgument
from octavo_edge.graph.manifest import PartKind, SplitOptions

__all__ = ["PartPlan", "check_split", "plan_parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """One part: layers [first, stop). ``takes`` and ``gives`` are tensors' names between parts, or the model's own."""

    name: str
    kind: PartKind
    layers: tuple[int, int]
    takes: str  # input_ids, or hidden_k
    gives: str  # hidden_k, or logits

    @property
    def begins_inside(self) -> bool:
        """Whether another part runs before it."""
        return self.takes != "input_ids"

    @property
    def ends_inside(self) -> bool:
        """Whether another part runs after it."""
        return self.gives != "logits"


def check_split(options: SplitOptions, num_layers: int) -> None:
    """Say whether a model of so many layers can be cut so.

    Raises:
        InvalidArgument: More decoder parts than layers, or none.
    """
    if not 1 <= options.num_decoder_parts <= num_layers:
        raise InvalidArgument(
            f"{num_layers} layers cannot be cut into {options.num_decoder_parts} parts",
            hint=f"--parts 1 to {num_layers}",
            param="parts",
        )


def plan_parts(options: SplitOptions, num_layers: int) -> list[PartPlan]:
    """Parts in the order in which they run; earlier ones get the layers that are left over."""
    check_split(options, num_layers)
    num_parts = options.num_decoder_parts
    plans: list[PartPlan] = []
    if options.embedding:
        plans.append(PartPlan(name="embedding", kind="embedding", layers=(0, 0), takes="input_ids", gives="hidden_0"))
    stop = 0
    for number in range(1, num_parts + 1):
        first, stop = stop, stop + num_layers // num_parts + (number <= num_layers % num_parts)
        inside = options.head or number < num_parts
        plans.append(
            PartPlan(
                name=f"decoder_{number}_of_{num_parts}",
                kind="decoder",
                layers=(first, stop),
                takes=f"hidden_{number - 1}" if options.embedding or number > 1 else "input_ids",
                gives=f"hidden_{number}" if inside else "logits",
            )
        )
    if options.head:
        layers = (num_layers, num_layers)
        plans.append(PartPlan(name="head", kind="head", layers=layers, takes=f"hidden_{num_parts}", gives="logits"))
    return plans
