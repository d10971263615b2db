"""Finds the first of several stop strings in a text that comes character by character.

Pure text: knows nothing of tokens. An Aho-Corasick automaton, so the cost per character does not depend on the strings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """The match that completes first wins; of those that complete together, the longest.

    So the outcome depends on the text alone, never on how it was cut into pushes.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        # State 0 is the root; a state is a prefix of some stop string and knows its length.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._fail = [0]
        # Length of the longest stop string that ends in the state; 0 for none.
        self._match = [0]
        for string in stop:
            if string:
                self._add(string)
        self._link()
        self._state = 0

    def _add(self, string: str) -> None:
        state = 0
        for depth, char in enumerate(string, 1):
            following = self._next[state].get(char)
            if following is None:
                following = len(self._next)
                self._next[state][char] = following
                self._next.append({})
                self._depth.append(depth)
                self._fail.append(0)
                self._match.append(0)
            state = following
        self._match[state] = len(string)

    def _link(self) -> None:
        """Point every state at its longest proper suffix that is a state; breadth first, so suffixes come before."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, following in self._next[state].items():
                self._fail[following] = self._step(self._fail[state], char)
                queue.append(following)
            self._match[state] = self._match[state] or self._match[self._fail[state]]

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    @property
    def num_held(self) -> int:
        """How many of the last characters may still turn out to begin a stop string."""
        return self._depth[self._state]

    def push(self, text: str) -> tuple[int, int] | None:
        """Read on; at the first match return (characters of `text` read, length of the match), else None.

        After a match nothing more may be pushed.
        """
        state = self._state
        if state == 0 and self._next[0].keys().isdisjoint(text):
            # Nothing can begin here; this is most of every answer.
            return None
        for position, char in enumerate(text, 1):
            state = self._step(state, char)
            if self._match[state]:
                self._state = state
                return position, self._match[state]
        self._state = state
        return None
