"""One answer of a job as this gateway has received it: pieces in order, and where a reader stands in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_gateway.values import TokenPiece


class Tape:
    """Grows at its end only; readers remember how many entries they have."""

    def __init__(self, received: Sequence[int]) -> None:
        # Tokens before it are known by id only: the reader that brought them has their text.
        self.num_before = len(received)
        self.ids: list[int] = list(received)
        self.entries: list[TokenPiece] = []
        # Characters of the entries.
        self.num_chars = 0

    def position_of(self, received: Sequence[int]) -> int | None:
        """Index of the first entry after these tokens, or None if the tape cannot be read from there."""
        count = len(received)
        if list(received) != self.ids[:count] or count < self.num_before:
            return None
        if count == self.num_before:
            return 0
        ends = [entry.first_token + len(entry.token_ids) for entry in self.entries]
        # The last entry that ends there: one without tokens belongs to the tokens before it.
        return next((i + 1 for i in range(len(ends) - 1, -1, -1) if ends[i] == count), None)

    def take(self, piece: TokenPiece) -> None:
        """Add a piece, which must begin where the tape ends."""
        if piece.first_token != len(self.ids):
            raise AssertionError(f"token {piece.first_token} came after {len(self.ids)} tokens")
        self.ids += piece.token_ids
        self.num_chars += len(piece.text)
        self.entries.append(piece)

    @property
    def is_untouched(self) -> bool:
        """Nobody has anything of the answer."""
        return not self.ids and not self.entries
