"""Turns tokens into text as they come. Knows nothing of stop strings.

Never repeats, loses or splits a character, and the whole equals what the tokenizer library decodes at once
(`skip_special_tokens=True`), also where the bytes are no valid UTF-8. Constant work per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo_common.text.decoding import Piece, PieceTable
from octavo_common.text.tokenizer import Tokenizer
from octavo_common.text.utf8 import num_open_bytes

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
        # Bytes of the open character.
        self._pending = b""
        # Tokens that wait for the end of the open character: the first began it, the others only continue it.
        self._open: list[str] = []

    def feed(self, piece: Piece) -> list[TokenText]:
        if not self._open and not isinstance(piece, bytes):
            return [TokenText(_text(piece), True)]
        data = self._pending + _bytes(piece)
        num_whole = len(data) - num_open_bytes(data)
        text, self._pending = data[:num_whole].decode("utf-8", "replace"), data[num_whole:]
        if not self._open:
            if self._pending:
                self._open = [text]
                return []
            return [TokenText(text, True)]
        if not text:
            self._open.append("")
            return []
        # The open bytes begin a character, so they become exactly one, valid or not: the first of `text`.
        done = self._close(text[0])
        if self._pending:
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
        self._pending = b""
        return self._close(_REPLACEMENT) if self._open else []


class _RunToken(NamedTuple):
    # None: a token without text inside the run.
    byte: int | None
    # Whether the run up to here is valid UTF-8 that ends with a character.
    complete: bool


class _Pieces:
    """Tokens are texts or single bytes; a run of bytes is decoded as one: valid as a whole, or U+FFFD for each byte."""

    def __init__(self, pieces: PieceTable, *, mid_text: bool) -> None:
        self._strip_char = pieces.form.strip_char
        self._num_strip = 0 if mid_text else pieces.form.num_strip
        # The open run, as long as it may still be valid.
        self._run: list[_RunToken] = []
        # Its last bytes, if they are open.
        self._pending = b""
        # The run is invalid whatever comes.
        self._broken = False

    def feed(self, piece: Piece) -> list[TokenText]:
        if isinstance(piece, int):
            return self._strip(self._feed_byte(piece))
        if piece is None and self._run:
            self._run.append(_RunToken(None, self._run[-1].complete))
            return []
        text = _text(piece)
        if piece is not None:
            self._broken = False
        if not self._run and not self._num_strip:
            return [TokenText(text, True)]
        return self._strip([*self._close(), TokenText(text, True)])

    def _feed_byte(self, byte: int) -> list[TokenText]:
        if self._broken:
            return [TokenText(_REPLACEMENT, True)]
        self._pending += bytes((byte,))
        if num_open_bytes(self._pending) == len(self._pending):
            self._run.append(_RunToken(byte, False))
            return []
        try:
            self._pending.decode("utf-8")
        except UnicodeDecodeError:
            self._run.append(_RunToken(byte, False))
            self._broken = True
            return self._close()
        self._run.append(_RunToken(byte, True))
        self._pending = b""
        return []

    def _close(self) -> list[TokenText]:
        """The run is over, or broken. A border inside is sound where the run up to it decodes alike by itself."""
        run, self._run = self._run, []
        self._pending = b""
        if run and run[-1].complete:
            chars = iter(bytes(token.byte for token in run if token.byte is not None).decode("utf-8"))
            return [
                TokenText("" if token.byte is None or 0x80 <= token.byte < 0xC0 else next(chars), token.complete)
                for token in run
            ]
        return [TokenText("" if token.byte is None else _REPLACEMENT, not token.complete) for token in run]

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
