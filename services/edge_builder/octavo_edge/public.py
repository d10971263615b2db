"""What may be told to people who do not use this machine: the same words without its paths. Knows no builds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any


def without_paths(text: str, *, places: Collection[Path] = (), keep: str = "") -> str:
    """The text with its paths cut to their last names: ``/srv/edge/drafts/0f/a.onnx`` becomes ``.../a.onnx``.

    A path begins with a directory that this machine has at its root, or with one of ``places``, which alone may have
    spaces in their names: names of tensors and operators (``/model/add``) stay as they are. What the reader has named
    himself is in ``keep``; it stays, and so does what lies directly in it.
    """
    keep = keep.rstrip("/")

    def cut(match: re.Match[str]) -> str:
        found = match[0].removeprefix("file://").rstrip("/.")
        if keep and keep in (found, str(PurePosixPath(found).parent)):
            return match[0]
        # A sentence's own end is none of the path's.
        return f".../{PurePosixPath(found).name}" + ("." if match[0].endswith(".") else "")

    return _pattern(tuple(sorted(map(str, places), reverse=True))).sub(cut, text)


def all_without_paths(value: Any, *, places: Collection[Path] = (), keep: str = "") -> Any:
    """JSON with every text in it told so, but for keys and names of tensors and operators."""
    if isinstance(value, str):
        return without_paths(value, places=places, keep=keep)
    if isinstance(value, Mapping):
        return {
            key: item if key in _NAMES else all_without_paths(item, places=places, keep=keep)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [all_without_paths(item, places=places, keep=keep) for item in value]
    return value


# Keys of reports whose values are names out of a graph: a host may have a directory /model.
_NAMES = frozenset({"tensor", "unsupported_ops"})


@cache
def _pattern(places: tuple[str, ...]) -> re.Pattern[str]:
    roots = "|".join(re.escape(path.name) for path in Path("/").iterdir() if path.is_dir())
    begins = rf"(?:{'|'.join([*map(re.escape, places), f'/(?:{roots})'])})(?![\w.-])"
    # Within quotes all of them, else up to what none of our paths has; not in the middle of a name or of a URL.
    quoted = rf"(?<=['\"])(?:{begins})[^'\"\n]*(?=['\"])"
    bare = rf"(?:(?<![\w./~-])|(?<=-[IL]))(?:file://)?(?:{begins})(?:/[^\s'\"`<>|:;,()\[\]{{}}]*)?"
    return re.compile(f"{quoted}|{bare}")
