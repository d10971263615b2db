"""Text for calibration and for judging, as windows of token ids. Knows no graph.

The text that comes with the builder is Python's own documentation of its language, which every interpreter carries:
a few hundred thousand words of technical English. What calibrates never judges: topics go to the one or the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from octavo_common.errors import InvalidArgument

Encode = Callable[[str], list[int]]

# Texts are encoded in pieces: a tokenizer refuses what is far too long for a prompt.
_PIECE_CHARS = 100_000


class NoUsableData(InvalidArgument):
    """There is not one window of text to calibrate with, or to judge by."""

    code = "NO_USABLE_DATA"


class Purpose(Enum):
    """What a text is for; the value is the recipe's key."""

    CALIBRATION = "calibration.texts"
    EVALUATION = "evaluation.texts"


def documents(purpose: Purpose, texts: Sequence[str], encode: Encode, *, length: int, num: int) -> list[list[int]]:
    """At most ``num`` stretches of ``length`` tokens, taken in turn from all texts so that few cover many.

    Raises:
        NoUsableData: No text is that long, a file cannot be read, or it is no UTF-8.
    """
    sources = [_read(Path(text), purpose) for text in texts] if texts else _own_texts(purpose)
    found: list[list[int]] = []
    waiting = [_Stretches(source, encode, length) for source in sources]
    while waiting and len(found) < num:
        still = []
        for stretches in waiting:
            stretch = stretches.next()
            if stretch is not None and len(found) < num:
                found.append(stretch)
                still.append(stretches)
        waiting = still
    if not found:
        raise NoUsableData(
            f"no text for {purpose.name.lower()} has {length} tokens",
            hint=f"give longer texts in {purpose.value}, or none for those that come with the builder",
            param=purpose.value,
        )
    return found


def texts_digest(purpose: Purpose, texts: Sequence[str]) -> str:
    """sha256 over the words of the texts, in hex. Raises NoUsableData as ``documents``."""
    sources = [_read(Path(text), purpose) for text in texts] if texts else _own_texts(purpose)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source.encode()).digest())
    return digest.hexdigest()


class _Stretches:
    """Stretches of one text, the first first; encoded when they are asked for."""

    def __init__(self, text: str, encode: Encode, length: int) -> None:
        self._text, self._encode, self._length = text, encode, length
        self._place, self._ids = 0, []

    def next(self) -> list[int] | None:
        while len(self._ids) < self._length:
            if self._place >= len(self._text):
                return None
            piece = self._text[self._place : self._place + _PIECE_CHARS]
            self._place += _PIECE_CHARS
            self._ids += self._encode(piece)
        stretch, self._ids = self._ids[: self._length], self._ids[self._length :]
        return stretch


def _read(path: Path, purpose: Purpose) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise NoUsableData(f"{path} cannot be read as text: {e}", param=purpose.value) from e


def _own_texts(purpose: Purpose) -> list[str]:
    from pydoc_data.topics import topics  # half a megabyte of text

    # By a hash of the name: an order that says nothing about the subject.
    names = sorted(topics, key=lambda name: hashlib.sha256(name.encode()).digest())
    start = 0 if purpose is Purpose.CALIBRATION else 1
    return [topics[name] for name in names[start::2]]
