"""Who is here: all sequences, and the lines in which they wait or run. Knows no blocks and no plan."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator

from octavo_worker.engine.plan import Fork
from octavo_worker.engine.ports import QueuePolicy
from octavo_worker.engine.sequence import Phase, Rank, Sequence
from octavo_worker.engine.types import RequestId, SeqId


class Roster:
    """Every sequence is in ``known``; of each unit one sequence stands in one line, or all of its rows run."""

    def __init__(self, queue: QueuePolicy) -> None:
        self.queue = queue
        self.known: dict[SeqId, Sequence] = {}
        self.requests: dict[RequestId, list[Sequence]] = {}
        # By rank. Beams of one search stand next to each other.
        self.running: list[Sequence] = []
        # Preempted units, by rank: the first to come back, unless who waits in the queue has the smaller rank.
        self.returning: list[Sequence] = []
        # Rows that a step must have room for: those that run, and those that will be forked off them.
        self.num_rows = 0
        # Ids that the executor must forget.
        self.gone: list[SeqId] = []
        # Those that it shall know as copies of others.
        self._forks: list[Fork] = []
        # (step of arrival, request), where age changes ranks.
        self._ageing: deque[tuple[int, RequestId]] = deque()

    @property
    def num_waiting(self) -> int:
        """Units that wait, preempted ones among them."""
        return len(self.queue) + len(self.returning)

    def arrive(self, seq: Sequence, step: int) -> None:
        """Take a new sequence in, at the end of nothing: its rank says where it stands."""
        self.know(seq)
        self.queue.push(seq)
        if self.queue.patience_steps is not None:
            self._ageing.append((step, seq.id.request))

    def know(self, seq: Sequence) -> None:
        """A sequence exists from now on."""
        self.known[seq.id] = seq
        self.requests.setdefault(seq.id.request, []).append(seq)

    def forget(self, seq: Sequence) -> None:
        """It does not exist any more, in no line either."""
        del self.known[seq.id]
        others = self.requests[seq.id.request]
        others.remove(seq)
        if not others:
            del self.requests[seq.id.request]

    def next(self) -> Sequence | None:
        """Whose turn it is among those that wait."""
        if not self.returning:
            return self.queue.peek() if len(self.queue) else None
        if len(self.queue) and (first := self.queue.peek()).rank < self.returning[0].rank:
            return first
        return self.returning[0]

    def take(self, seq: Sequence) -> None:
        """Take the one whose turn it is out of its line."""
        if seq in self.returning:
            self.returning.remove(seq)
        else:
            popped = self.queue.pop()
            assert popped is seq, "only the first of the queue leaves it"

    def run(self, seq: Sequence) -> None:
        """A row from now on."""
        insort(self.running, seq, key=_rank)

    def branch(self, seq: Sequence, twin: Sequence) -> None:
        """A row from now on that has been forked off another, which the executor may know."""
        self.run(twin)
        if twin.is_told:
            self._forks.append(Fork(seq.id, twin.id))

    def take_forks(self) -> tuple[Fork, ...]:
        """Forks that the executor has not been told of, without twins that have lost their place since."""
        forks, self._forks = self._forks, []
        return tuple(fork for fork in forks if (twin := self.known.get(fork.twin)) is not None and twin.is_told)

    def rest(self, seq: Sequence) -> None:
        """No row any more; the executor forgets it."""
        self.running.remove(seq)
        self.gone.append(seq.id)

    def come_back(self, seq: Sequence) -> None:
        """A preempted unit waits, by its first sequence."""
        insort(self.returning, seq, key=_rank)

    def leave_line(self, seq: Sequence) -> None:
        """Out of whichever line it waits in."""
        if seq in self.returning:
            self.returning.remove(seq)
        else:
            self.queue.remove(seq)

    def parked(self) -> Iterator[Sequence]:
        """First sequences of units that lie in host memory, youngest first."""
        return (seq for seq in reversed(self.returning) if seq.parked)

    def keeping(self) -> Sequence | None:
        """The youngest of these that keeps blocks in the pool, because others held them, too."""
        return next((seq for seq in self.parked() if any(b >= 0 for m in seq.unit for b in m.parked)), None)

    def age(self, step: int) -> None:
        """Let requests that have been here for long pass all that have not. Each is looked at once."""
        patience_steps = self.queue.patience_steps
        while self._ageing and patience_steps is not None and self._ageing[0][0] + patience_steps < step:
            for seq in self.requests.get(self._ageing.popleft()[1], ()):
                self._set_rank(seq, (float("-inf"), *seq.rank[1:]))

    def _set_rank(self, seq: Sequence, rank: Rank) -> None:
        for line in (self.running, self.returning):
            if seq in line:
                line.remove(seq)
                seq.rank = rank
                insort(line, seq, key=_rank)
                return
        if seq.phase is Phase.WAITING and seq.unit[0] is seq:
            self.queue.move(seq, rank)
            return
        # A beam that waits behind its first one.
        seq.rank = rank


def _rank(seq: Sequence) -> Rank:
    return seq.rank
