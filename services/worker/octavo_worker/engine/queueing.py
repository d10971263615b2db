"""The order in which waiting sequences are admitted.

A rank is given at arrival. Ageing needs no clock: with priorities all age alike, so who is ahead of whom never changes
after arrival; with deadlines those that have waited long are told to pass all others.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping

from octavo_worker.engine.ports import QueuePolicy
from octavo_worker.engine.sequence import Rank, Sequence
from octavo_worker.engine.types import Request


class FcfsQueue:
    """Strictly by arrival."""

    # So many steps after its arrival a request passes all that came later and are not as old; None is never.
    patience_steps: int | None = None

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []

    def rank(self, request: Request, *, arrival: int, step: int) -> float:
        """Smaller is served first; of equals, who came first."""
        del request, arrival, step
        return 0

    def push(self, seq: Sequence) -> None:
        """Take a sequence into its place."""
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

    def move(self, seq: Sequence, rank: Rank) -> None:
        """Give one that waits another place."""
        self._waiting.remove(seq)
        seq.rank = rank
        self.push(seq)

    def served(self, request: Request, num_tokens: int) -> None:
        """So many tokens were generated for a request; nothing follows from it here."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)


class PriorityQueue(FcfsQueue):
    """Larger priorities first, with ageing: a level more per so many steps, so that everyone advances."""

    def __init__(self, *, steps_per_level: int = 256) -> None:
        super().__init__()
        self._steps_per_level = steps_per_level

    def rank(self, request: Request, *, arrival: int, step: int) -> float:
        """The step at which a request of priority 0 would have to arrive to be served equally soon."""
        del arrival
        return step - request.priority * self._steps_per_level


class DeadlineQueue(FcfsQueue):
    """Who is due first comes first; who has been here for so many steps comes before all that are younger."""

    def __init__(self, *, patience_steps: int = 1024) -> None:
        super().__init__()
        self.patience_steps = patience_steps

    def rank(self, request: Request, *, arrival: int, step: int) -> float:
        """When it is due. No deadline is the latest."""
        del arrival, step
        return float("inf") if request.due is None else request.due


class FairQueue:
    """Tokens are shared evenly between the `fair_key`s that have something waiting; within one, a policy of its own.

    Next is the key that was served least so far. A key that comes (back) begins where the least served one of those
    that wait stands: nobody saves up a share by staying away, nobody is punished for having used an idle engine. Who
    waits is passed by another key only while that was served less, so in bounded steps it is its turn.
    """

    # A generated token takes a step of its own, one of a prompt shares it with many.
    _OUTPUT_WEIGHT = 2
    # Keys whose books are kept although nothing of theirs waits.
    _MAX_IDLE_KEYS = 1024

    def __init__(self, make_line: Callable[[], QueuePolicy]) -> None:
        self._make_line = make_line
        self._order = make_line()
        self._lines: dict[str, QueuePolicy] = {}
        self._served: dict[str, int] = {}
        # What the key had been served that was chosen last: where a key begins when none waits.
        self._level = 0
        self.patience_steps = self._order.patience_steps

    def rank(self, request: Request, *, arrival: int, step: int) -> float:
        """As the policy says."""
        return self._order.rank(request, arrival=arrival, step=step)

    def push(self, seq: Sequence) -> None:
        """Take a sequence into the line of its key."""
        key = seq.request.fair_key
        line = self._lines.get(key)
        if line is None:
            level = min((self._served[other] for other in self._lines), default=self._level)
            self._served[key] = max(self._served.get(key, 0), level)
            line = self._lines[key] = self._make_line()
        line.push(seq)

    def peek(self) -> Sequence:
        """The first of the key that was served least; of equally served ones the first by rank."""
        return self._lines[self._next_key()].peek()

    def pop(self) -> Sequence:
        """Take it out; its known tokens count as served now, so that the next look sees another key."""
        key = self._next_key()
        seq = self._lines[key].pop()
        self._level = max(self._level, self._served[key])
        self._served[key] += len(seq.tokens)
        self._drop_empty(key)
        return seq

    def remove(self, seq: Sequence) -> None:
        """Take one out from anywhere."""
        self._lines[seq.request.fair_key].remove(seq)
        self._drop_empty(seq.request.fair_key)

    def move(self, seq: Sequence, rank: Rank) -> None:
        """Give one another place in the line of its key; between keys nothing changes."""
        self._lines[seq.request.fair_key].move(seq, rank)

    def served(self, request: Request, num_tokens: int) -> None:
        """So many tokens were generated for a request."""
        key = request.fair_key
        self._served[key] = self._served.get(key, 0) + num_tokens * self._OUTPUT_WEIGHT

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def _next_key(self) -> str:
        return min(self._lines, key=lambda key: (self._served[key], self._lines[key].peek().rank))

    def _drop_empty(self, key: str) -> None:
        if len(self._lines[key]):
            return
        del self._lines[key]
        if len(self._served) > self._MAX_IDLE_KEYS + len(self._lines):
            # Those that were served least lose the least by being forgotten: they begin where others stand anyway.
            idle = sorted((num, key) for key, num in self._served.items() if key not in self._lines)
            for _, forgotten in idle[: len(idle) // 2]:
                del self._served[forgotten]


QUEUES: Mapping[str, Callable[[], QueuePolicy]] = {
    "fcfs": FcfsQueue,
    "priority": lambda: FairQueue(PriorityQueue),
    "deadline": lambda: FairQueue(DeadlineQueue),
}
"""By name in settings."""
