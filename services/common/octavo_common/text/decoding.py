"""What single tokens mean as text, read from a tokenizer's decoder. Stateless: order is the detokenizer's business.

Two families are known, and everything else is refused rather than decoded almost rightly:
byte-level (a token is a run of bytes) and pieces (a token is text with a mark for the space, or `<0xNN>` for one byte).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import Tokenizer as HfTokenizer

from octavo_common.text.bundle import UnsupportedTokenizer

# What a token stands for: whole text; bytes that are no text by themselves (byte-level); one byte of a run (pieces);
# None for nothing (special tokens, ids outside the vocabulary).
Piece = str | bytes | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderForm:
    """A decoder of tokenizer.json in the one order in which its steps may come."""

    byte_level: bool = False
    # Texts replaced in each token, in this order.
    replace: tuple[tuple[str, str], ...] = ()
    # Mark dropped from the very first token instead of being replaced.
    first_mark: str | None = None
    byte_fallback: bool = False
    # At most so many of this character are cut from the start of the whole text.
    strip_char: str = " "
    num_strip: int = 0


def parse_decoder(tokenizer_json: str) -> DecoderForm:
    """Read the decoder; raises UnsupportedTokenizer with the step that is not known."""
    decoder = json.loads(tokenizer_json).get("decoder")
    if not isinstance(decoder, dict):
        raise UnsupportedTokenizer("the tokenizer has no decoder")
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if steps and steps[0]["type"] == "ByteLevel" and all(s["type"] == "Fuse" for s in steps[1:]):
        return DecoderForm(byte_level=True)
    form = _Steps()
    for step in steps:
        form.take(step)
    return form.result()


class _Steps:
    """Collects the steps of a pieces decoder; each may only come at or after the stage of the one before."""

    def __init__(self) -> None:
        self.stage = 0
        self.replace: list[tuple[str, str]] = []
        self.values: dict[str, Any] = {}

    def take(self, step: dict[str, Any]) -> None:
        kind = step["type"]
        stage = {"Replace": 1, "Metaspace": 1, "ByteFallback": 2, "Fuse": 3, "Strip": 4}.get(kind, 0)
        if stage < self.stage or stage == 0 or (stage == 4 and self.stage != 3):
            raise UnsupportedTokenizer(f"the tokenizer's decoder step {kind} is not supported here")
        self.stage = stage
        if kind == "Replace":
            pattern = step["pattern"].get("String")
            if not pattern:
                raise UnsupportedTokenizer("the tokenizer's decoder replaces by a regular expression")
            self.replace.append((pattern, step["content"]))
        elif kind == "Metaspace":
            mark = step.get("replacement", "▁")
            self.replace.append((mark, " "))
            if step.get("prepend_scheme", "always") != "never":
                self.values["first_mark"] = mark
        elif kind == "ByteFallback":
            self.values["byte_fallback"] = True
        elif kind == "Strip":
            if step.get("stop", 0):
                raise UnsupportedTokenizer("the tokenizer's decoder strips the end of the text")
            self.values |= {"strip_char": step["content"], "num_strip": step["start"]}

    def result(self) -> DecoderForm:
        if self.stage == 0:
            raise UnsupportedTokenizer("the tokenizer's decoder is empty")
        return DecoderForm(replace=tuple(self.replace), **self.values)


class PieceTable:
    """The piece of every token id, worked out when first asked for. May be shared between threads."""

    def __init__(self, tokenizer: HfTokenizer, form: DecoderForm) -> None:
        self.form = form
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token.content for token in added.values() if token.special)
        self._pieces: dict[int, Piece] = {}

    def __getitem__(self, token_id: int) -> Piece:
        """The piece of a token that is not the first of its text."""
        try:
            return self._pieces[token_id]
        except KeyError:
            piece = self._pieces[token_id] = self._make(token_id, first=False)
            return piece

    def first(self, token_id: int) -> Piece:
        """The piece of a token that opens its text."""
        if self.form.first_mark is None:
            return self[token_id]
        return self._make(token_id, first=True)

    def _make(self, token_id: int, *, first: bool) -> Piece:
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None or token in self._special:
            return None
        if self.form.byte_level:
            return _from_bytes(token)
        if first and self.form.first_mark is not None:
            token = token.replace(self.form.first_mark, "")
        for old, new in self.form.replace:
            token = token.replace(old, new)
        if self.form.byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return int(token[3:5], 16)
            except ValueError:
                return token
        return token


def _from_bytes(token: str) -> Piece:
    """A byte-level token: every character stands for a byte; a token with any other character is plain text."""
    try:
        data = bytes(_BYTE_OF_CHAR[char] for char in token)
    except KeyError:
        return token
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if chr(b) not in table)
    return table | {chr(256 + n): b for n, b in enumerate(cast("list[int]", list(others)))}


_BYTE_OF_CHAR = _byte_alphabet()
