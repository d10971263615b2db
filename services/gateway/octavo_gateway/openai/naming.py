"""What a client calls the fields that our checks name: errors speak of what stands in its request. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from octavo_common.errors import OctavoError

# A field of a list or an object: the name before it is translated.
_PATH = re.compile(r"^([a-z_]+)(.*)$", re.DOTALL)


def renamed(error: OctavoError, names: Mapping[str, str]) -> OctavoError:
    """The same error with the client's names, in its param, its message and its hint."""
    if error.param is not None:
        error.param = _PATH.sub(lambda found: names.get(found[1], found[1]) + found[2], error.param)
    error.message, error.hint = _said(error.message, names), _said(error.hint, names)
    return error


def _said(text: str, names: Mapping[str, str]) -> str:
    """Text with our names replaced where they stand as words of their own, not within quotes of the caller's."""
    for ours, theirs in names.items():
        # A plain word may mean itself, except where a message begins with it.
        start = r"(?<![\w'\"./])" if "_" in ours else "^"
        text = re.sub(rf"{start}{re.escape(ours)}(?![\w'\"])", lambda _, theirs=theirs: theirs, text)
    return text
