"""How often each token occurs in one sequence, kept so that a new token costs the same however long the sequence is."""

from __future__ import annotations

import numpy as np

from octavo_worker.engine.types import Token


class TokenCounts:
    """Distinct tokens with their numbers of occurrences, as arrays that grow."""

    def __init__(self) -> None:
        self._index: dict[Token, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.int32)

    def copy(self) -> TokenCounts:
        """The same counts, on their own from now on."""
        twin = TokenCounts()
        twin._index, twin._ids, twin._counts = self._index.copy(), self._ids.copy(), self._counts.copy()
        return twin

    def add(self, token: Token) -> None:
        """Count one occurrence."""
        at = self._index.setdefault(token, len(self._index))
        if at == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[at] = token
        self._counts[at] += 1

    def take_back(self, token: Token) -> None:
        """Undo one ``add``."""
        self._counts[self._index[token]] -= 1

    def present(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the tokens that occur, and how often."""
        size = len(self._index)
        counts = self._counts[:size]
        kept = counts > 0
        return self._ids[:size][kept], counts[kept]
