"""What the engine needs from others. Implementations live above it; the null objects here do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from octavo_worker.engine.plan import NO_KV_OPS, BatchPlan, KVDone, KVOps, StepResult
from octavo_worker.engine.sequence import Rank, Sequence
from octavo_worker.engine.types import Request, Token


class Executor(Protocol):
    """Computes a plan."""

    @property
    def lookahead(self) -> int:
        """Slots beyond a row's last token that it needs to write (drafts); 0 without speculation."""
        ...

    def run(self, plan: BatchPlan) -> StepResult:
        """Compute all rows; the order within: ``forks`` and ``gone``, then the KV operations, then the rows.

        All or nothing: a call that raises must have changed nothing but KV slots from the rows' starts on, because the
        engine repeats it with fewer rows to find the one at fault; what the step says beside its rows may be done once
        for all of its parts. A row that fails by itself is better answered with RowResult.error. A plan may have no
        rows.
        """
        ...


class QueuePolicy(Protocol):
    """The order of the waiting sequences, and by rank also who is preempted last."""

    @property
    def patience_steps(self) -> int | None:
        """So many steps after its arrival a request passes all that are not as old; None is never."""
        ...

    def rank(self, request: Request, *, arrival: int, step: int) -> float:
        """Place of a request among all; smaller is served first, of equals the earlier. Asked once, at arrival."""
        ...

    def push(self, seq: Sequence) -> None:
        """Take a new sequence into its place."""
        ...

    def peek(self) -> Sequence:
        """The one to admit next; the queue must not be empty."""
        ...

    def pop(self) -> Sequence:
        """Take it out."""
        ...

    def remove(self, seq: Sequence) -> None:
        """Take one out from anywhere."""
        ...

    def move(self, seq: Sequence, rank: Rank) -> None:
        """Give one that waits another rank, and the place that goes with it."""
        ...

    def served(self, request: Request, num_tokens: int) -> None:
        """So many tokens were generated for a request."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]: ...


class KVPlanner(Protocol):
    """Scheduler half of a KV connector: decides, moves nothing."""

    def on_allocated(self, seq: Sequence) -> None:
        """The sequence was admitted and has its blocks."""
        ...

    def on_finished(self, seq: Sequence) -> bool:
        """The sequence ended; True holds its blocks until KVDone.saved names it."""
        ...

    def take_ops(self) -> KVOps:
        """Operations for the plan that is being made; each is handed out once."""
        ...

    def on_done(self, done: KVDone) -> None:
        """Operations that ended."""
        ...


class LocalKV:
    """All KV stays in the pool."""

    def on_allocated(self, seq: Sequence) -> None:
        """Nothing to do."""

    def on_finished(self, seq: Sequence) -> bool:
        """Nothing to hold."""
        del seq
        return False

    def take_ops(self) -> KVOps:
        """Never any."""
        return NO_KV_OPS

    def on_done(self, done: KVDone) -> None:
        """Nothing to do."""


class ExitPolicy(Protocol):
    """May steer a sequence by tokens of its own."""

    def forced(self, seq: Sequence, signals: Mapping[str, float]) -> tuple[Token, ...]:
        """Tokens to append now, after those of the step; usually none."""
        ...


class NeverExit:
    """Leaves every sequence alone."""

    def forced(self, seq: Sequence, signals: Mapping[str, float]) -> tuple[Token, ...]:
        """No token."""
        del seq, signals
        return ()
