"""The order in which waiting sequences are admitted. A rank is given at arrival and never changes.

Ageing needs no clock for that: all age alike, so who is ahead of whom never changes after arrival.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.types import Request


class FcfsQueue:
    """Strictly by arrival. A preempted sequence is older than all that wait, so it returns to the front."""

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []

    def rank(self, request: Request, *, arrival: int, step: int) -> tuple[int, int]:
        """Smaller is served first; unique, because arrivals are."""
        del request, step
        return (0, arrival)

    def push(self, seq: Sequence) -> None:
        """Take a new or preempted sequence into its place."""
        insort(self._waiting, seq, key=lambda other: other.rank)

    def peek(self) -> Sequence:
        """The one to admit next; the queue must not be empty."""
        return self._waiting[0]

    def pop(self) -> Sequence:
        """Take it out."""
        return self._waiting.pop(0)

    def remove(self, seq: Sequence) -> None:
        """Take one out from anywhere."""
        self._waiting.remove(seq)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)


class PriorityQueue(FcfsQueue):
    """Larger priorities first, with ageing: a level more per so many steps, so that everyone advances."""

    def __init__(self, *, steps_per_level: int = 256) -> None:
        super().__init__()
        self._steps_per_level = steps_per_level

    def rank(self, request: Request, *, arrival: int, step: int) -> tuple[int, int]:
        """The step at which a request of priority 0 would have to arrive to be served equally soon."""
        return (step - request.priority * self._steps_per_level, arrival)
