"""Checks what a user asks of a tool-chain. Knows no tool-chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo_common.errors import InvalidArgument
from octavo_edge.target import CompileOptions

__all__ = ["check_options"]


def check_options(
    options: CompileOptions, target: str, known: Mapping[str, tuple[str, ...] | Callable[[str], bool]]
) -> None:
    """Refuse keys and values; `known` says by key which there are, or whether one is.

    Raises:
        InvalidArgument: Names the key or value that the target does not know.
    """
    for key, value in options.values.items():
        param = f"options.{key}"
        if key not in known:
            hint = f"options of {target}: {', '.join(known)}" if known else f"{target} has no options"
            raise InvalidArgument(f"{target} has no option {key!r}", hint=hint, param=param)
        allowed = known[key]
        if isinstance(allowed, tuple):
            if value not in allowed:
                hint = f"one of: {', '.join(allowed)}"
                raise InvalidArgument(f"{target}: {key} cannot be {value!r}", hint=hint, param=param)
        elif not allowed(value):
            raise InvalidArgument(f"{target}: {key} cannot be {value!r}", param=param)
