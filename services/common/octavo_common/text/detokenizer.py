"""Turns tokens into text as they come. Knows nothing of stop strings.

Never repeats, loses or splits a character, and the whole equals what the tokenizer library decodes at once
(`skip_special_tokens=True`), also where the bytes are no valid UTF-8. Constant work per token.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from octavo_common.text.decoding import Piece, PieceTable
from octavo_common.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class TokenText(NamedTuple):
    """The text of one token, once nothing that may follow can change it."""

    # The characters that begin in the token.
    text: str
    # Whether the text up to here is all that the tokens up to here decode to: False inside a character.
    whole: bool


class Detokenizer:
    """The state of one text. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, mid_text: bool = False) -> None:
        """With mid_text the tokens continue a text, so a space at their start is kept where the model marks one."""
        self._pieces = tokenizer.pieces
        self._state = _ByteLevel() if self._pieces.form.byte_level else _Pieces(self._pieces, mid_text=mid_text)
        self._first = not mid_text

    def feed(self, token_id: int) -> list[TokenText]:
        """Take one token; returns the tokens that have become certain, oldest first, each token exactly once."""
        piece = self._pieces.first(token_id) if self._first else self._pieces[token_id]
        if piece is not None:
            self._first = False
        return self._state.feed(piece)

    def end(self) -> list[TokenText]:
        """No more tokens: returns those that were still open."""
        return self._state.end()

    def push(self, ids: Sequence[int]) -> str:
        """Take tokens; returns the text that has become certain."""
        return "".join([t.text for i in ids for t in self.feed(i)])

    def flush(self) -> str:
        """No more tokens: returns the rest of the text."""
        return "".join([t.text for t in self.end()])


class _ByteLevel:
    """Tokens are runs of bytes; a character may begin in one token and end in another."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Tokens that wait for the end of the open character: the first began it, the others only continue it.
        self._open: list[str] = []

    def feed(self, piece: Piece) -> list[TokenText]:
        if not self._open and not isinstance(piece, bytes):
            return [TokenText(_text(piece), True)]
        text = self._decoder.decode(_bytes(piece))
        pending = bool(self._decoder.getstate()[0])
        if not self._open:
            if pending:
                self._open = [text]
                return []
            return [TokenText(text, True)]
        if not text:
            self._open.append("")
            return []
        # The open bytes begin a character, so they become exactly one, valid or not: the first of `text`.
        done = self._close(text[0])
        if pending:
            self._open = [text[1:]]
            return done
        return [*done, TokenText(text[1:], True)]

    def _close(self, char: str) -> list[TokenText]:
        # An unfinished sequence decodes to U+FFFD by itself, so if that is what it became, each border inside is sound.
        whole = char == _REPLACEMENT
        done = [TokenText(self._open[0] + char, whole)]
        done += [TokenText("", whole)] * (len(self._open) - 1)
        self._open = []
        return done

    def end(self) -> list[TokenText]:
        text = self._decoder.decode(b"", final=True)
        return self._close(text) if self._open else []


class _Pieces:
    """Tokens are texts or single bytes; a run of bytes is decoded as one: valid as a whole, or U+FFFD for each byte."""

    def __init__(self, pieces: PieceTable, *, mid_text: bool) -> None:
        self._strip_char = pieces.form.strip_char
        self._num_strip = 0 if mid_text else pieces.form.num_strip
        # The open run: a byte per token, None for a token without text in between.
        self._run: list[int | None] = []

    def feed(self, piece: Piece) -> list[TokenText]:
        if isinstance(piece, int) or (piece is None and self._run):
            self._run.append(piece)
            return []
        text = _text(piece)
        if not self._run and not self._num_strip:
            return [TokenText(text, True)]
        return self._strip([*self._close(), TokenText(text, True)])

    def _close(self) -> list[TokenText]:
        data = bytes(b for b in self._run if b is not None)
        try:
            chars = iter(data.decode("utf-8"))
            texts = ["" if b is None or 0x80 <= b < 0xC0 else next(chars) for b in self._run]
        except UnicodeDecodeError:
            texts = ["" if b is None else _REPLACEMENT for b in self._run]
        # Inside the run nothing is sound: one bad byte at its end would have changed all of it.
        last = max((n for n, b in enumerate(self._run) if b is not None), default=0)
        self._run = []
        return [TokenText(text, n >= last) for n, text in enumerate(texts)]

    def _strip(self, tokens: list[TokenText]) -> list[TokenText]:
        stripped: list[TokenText] = []
        for text, whole in tokens:
            while self._num_strip and text:
                if text[0] != self._strip_char:
                    self._num_strip = 0
                    break
                text = text[1:]
                self._num_strip -= 1
            stripped.append(TokenText(text, whole))
        return stripped

    def end(self) -> list[TokenText]:
        return self._strip(self._close())


def _text(piece: Piece) -> str:
    assert piece is None or isinstance(piece, str)
    return piece or ""


def _bytes(piece: Piece) -> bytes:
    assert not isinstance(piece, int)
    if isinstance(piece, str):
        return piece.encode("utf-8")
    return piece or b""
