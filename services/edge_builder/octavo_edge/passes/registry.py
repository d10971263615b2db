"""The passes by name, in the order in which they run, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onnx import ModelProto

from octavo_common.errors import InvalidArgument
from octavo_edge.passes.canonical import constant_second, split_sequences
from octavo_edge.passes.cleanup import drop_zero_bias, remove_dead_code, remove_noops
from octavo_edge.passes.duplicates import merge_common_subexpressions, merge_duplicate_initialisers
from octavo_edge.passes.fold import fold_constants
from octavo_edge.passes.layout import merge_reshapes, merge_transposes
from octavo_edge.passes.naming import name_by_module

__all__ = ["DEFAULT_PASSES", "PASSES", "GraphPass", "select_passes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPass:
    """One rewrite. `run` changes neither its argument nor what the graph computes."""

    name: str
    run: Callable[[ModelProto], ModelProto]


# Order matters: constants are known before what reads them is judged, and names are given to what is left.
PASSES = tuple(
    GraphPass(name=run.__name__, run=run)
    for run in (
        fold_constants,
        split_sequences,
        drop_zero_bias,
        remove_noops,
        merge_reshapes,
        merge_transposes,
        merge_duplicate_initialisers,
        merge_common_subexpressions,
        constant_second,
        remove_dead_code,
        name_by_module,
    )
)
DEFAULT_PASSES = tuple(entry.name for entry in PASSES)


def select_passes(names: Iterable[str]) -> tuple[GraphPass, ...]:
    """The named passes in the order in which they run, whatever order they are named in.

    Raises:
        InvalidArgument: There is no pass of a name.
    """
    wanted = set(names)
    unknown = sorted(wanted - set(DEFAULT_PASSES))
    if unknown:
        raise InvalidArgument(
            f"there is no pass {', '.join(unknown)}", hint=f"passes: {', '.join(DEFAULT_PASSES)}", param="passes"
        )
    return tuple(entry for entry in PASSES if entry.name in wanted)
