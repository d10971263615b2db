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
from octavo_edge.passes.fusion import fuse_rms_norm
from octavo_edge.passes.layout import merge_reshapes, merge_transposes
from octavo_edge.passes.naming import name_by_module

__all__ = ["DEFAULT_PASSES", "PASSES", "GraphPass", "select_passes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPass:
    """One rewrite. `run` changes neither its argument nor what the graph computes.

    What is not `default` has to be asked for: some targets like it and others do not have it.
    """

    name: str
    run: Callable[[ModelProto], ModelProto]
    default: bool = True


# Order matters: constants are known before what reads them is judged, and names are given to what is left.
PASSES = (
    GraphPass(name="fold_constants", run=fold_constants),
    GraphPass(name="split_sequences", run=split_sequences),
    GraphPass(name="drop_zero_bias", run=drop_zero_bias),
    GraphPass(name="remove_noops", run=remove_noops),
    GraphPass(name="merge_reshapes", run=merge_reshapes),
    GraphPass(name="merge_transposes", run=merge_transposes),
    GraphPass(name="merge_duplicate_initialisers", run=merge_duplicate_initialisers),
    GraphPass(name="merge_common_subexpressions", run=merge_common_subexpressions),
    GraphPass(name="constant_second", run=constant_second),
    GraphPass(name="fuse_rms_norm", run=fuse_rms_norm, default=False),
    GraphPass(name="remove_dead_code", run=remove_dead_code),
    GraphPass(name="name_by_module", run=name_by_module),
)
DEFAULT_PASSES = tuple(entry.name for entry in PASSES if entry.default)


def select_passes(names: Iterable[str]) -> tuple[GraphPass, ...]:
    """The named passes in the order in which they run, whatever order they are named in.

    Raises:
        InvalidArgument: There is no pass of a name.
    """
    wanted = set(names)
    known = [entry.name for entry in PASSES]
    unknown = sorted(wanted.difference(known))
    if unknown:
        raise InvalidArgument(
            f"there is no pass {', '.join(unknown)}", hint=f"passes: {', '.join(known)}", param="passes"
        )
    return tuple(entry for entry in PASSES if entry.name in wanted)
