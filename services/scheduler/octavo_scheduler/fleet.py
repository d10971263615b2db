"""What the scheduler believes about the workers between two looks at the table. No I/O.

Remembers which prompts it sent where (a worker's own report comes with its heartbeat only), and which workers gave a
sign of death: the table calls a worker alive for a whole lease after its last heartbeat.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from octavo_common.clock import Clock
from octavo_common.jobs.model import Assignment, FleetWorker, QueuedJob
from octavo_scheduler.placement import HeldJob, WorkerView

# A heartbeat that was on its way when the sign came proves nothing.
HEARTBEAT_MARGIN_S = 0.25
# So long a worker that was not heard of yet is waited for; then its row is believed.
FIRST_CONTACT_S = 0.5
# Jobs whose whereabouts are remembered; of older ones no sign of death is read.
MAX_REMEMBERED = 10_000


@dataclass(slots=True)
class _Sent:
    """What one worker was given."""

    # Keys of a prompt -> its tokens, oldest first; together they fit into the worker's blocks.
    prompts: OrderedDict[tuple[str, ...], int] = field(default_factory=OrderedDict)
    num_tokens: int = 0
    # In how many of the prompts a key occurs.
    keys: Counter[str] = field(default_factory=Counter)

    def add(self, keys: tuple[str, ...], num_tokens: int, capacity: int) -> None:
        if keys in self.prompts:
            self.prompts.move_to_end(keys)
            return
        self.prompts[keys] = num_tokens
        self.num_tokens += num_tokens
        self.keys.update(keys)
        while self.num_tokens > capacity and len(self.prompts) > 1:
            oldest, tokens = self.prompts.popitem(last=False)
            self.num_tokens -= tokens
            self.keys.subtract(oldest)
            for key in oldest:
                if self.keys[key] <= 0:
                    del self.keys[key]


@dataclass(frozen=True, slots=True)
class _Given:
    worker_id: UUID
    fence: int
    total_losses: int


class Fleet:
    """Turns rows of the table into what placement sees, adding what the table does not know yet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: Sequence[FleetWorker] = ()
        self._read_at = -math.inf
        # Worker -> what it was given after the rows were read.
        self._since: dict[UUID, list[HeldJob]] = {}
        self._sent: dict[UUID, _Sent] = {}
        self._given: dict[UUID, _Given] = {}
        # Worker -> moment of the last sign that it is gone.
        self._suspected: dict[UUID, float] = {}
        # Worker -> when it was first called; those that have not answered yet.
        self._awaited: dict[UUID, float] = {}
        # They say by their health check that they want nothing.
        self._not_serving: set[UUID] = set()

    def await_contact(self, worker_id: UUID) -> None:
        """Note that a worker is being called: it may have died a moment ago, or not serve yet."""
        self._awaited[worker_id] = self._clock.monotonic()

    def suspect(self, worker_id: UUID) -> None:
        """Note a sign that a worker is gone. It gets nothing until a heartbeat that is newer than the sign."""
        self._awaited.pop(worker_id, None)
        self._suspected[worker_id] = self._clock.monotonic()

    def trust(self, worker_id: UUID) -> None:
        """Drop the suspicion: the worker has answered."""
        self._suspected.pop(worker_id, None)

    def set_serving(self, worker_id: UUID, serving: bool) -> None:
        """Note what a worker's health check says."""
        self._awaited.pop(worker_id, None)
        if serving:
            self._not_serving.discard(worker_id)
        else:
            self._not_serving.add(worker_id)

    def update(self, rows: Sequence[FleetWorker]) -> None:
        """Take over what the table says now; forgets workers without a row."""
        self._rows, self._since = rows, {}
        self._read_at = self._clock.monotonic()
        self._forget_all_but({worker.id for worker in rows})

    @property
    def age_s(self) -> float:
        """Seconds since the last update."""
        return self._clock.monotonic() - self._read_at

    @property
    def num_workers(self) -> int:
        """Workers with a row, usable or not."""
        return len(self._rows)

    def views(self) -> list[WorkerView]:
        """The workers that may be given jobs now, in the order of the rows, with what they were given since.

        What has ended since is not known: between two updates a worker looks busier than it is, never freer.
        """
        return [self._view(worker) for worker in self._rows if self._usable(worker)]

    def learn(self, queue: Iterable[QueuedJob]) -> list[UUID]:
        """Suspect the workers that lost a job which they were given; returns their ids."""
        suspects: list[UUID] = []
        for job in queue:
            given = self._given.get(job.id)
            if given is None or job.fence <= given.fence:
                continue
            del self._given[job.id]
            # Without a new loss the worker gave it back by itself.
            if job.total_losses > given.total_losses:
                self.suspect(given.worker_id)
                suspects.append(given.worker_id)
        return suspects

    def assigned(self, job: QueuedJob, assignment: Assignment) -> None:
        """Note that an assignment took effect."""
        self._since.setdefault(assignment.worker_id, []).append(HeldJob(job.fair_key, job.losses > 0))
        # The row's fence after it: one more.
        self._given[job.id] = _Given(assignment.worker_id, job.fence + 1, job.total_losses)
        if len(self._given) > MAX_REMEMBERED:
            del self._given[next(iter(self._given))]
        if not job.prefix_keys:
            return
        card = next(worker.card for worker in self._rows if worker.id == assignment.worker_id)
        sent = self._sent.setdefault(assignment.worker_id, _Sent())
        sent.add(job.prefix_keys, job.num_prompt_tokens, card.num_blocks * card.block_size)

    def _usable(self, worker: FleetWorker) -> bool:
        if worker.draining or worker.id in self._not_serving:
            return False
        called_at = self._awaited.get(worker.id)
        if called_at is not None and self._clock.monotonic() - called_at < FIRST_CONTACT_S:
            return False
        suspected_at = self._suspected.get(worker.id)
        if suspected_at is None:
            return True
        if self._read_at - worker.heartbeat_age_s > suspected_at + HEARTBEAT_MARGIN_S:
            del self._suspected[worker.id]
            return True
        return False

    def _view(self, worker: FleetWorker) -> WorkerView:
        sent = self._sent.get(worker.id)
        reported = worker.load.get("prefix_keys") or ()
        return WorkerView(
            id=worker.id,
            model_digest=worker.card.digest,
            numerics_id=worker.card.numerics_id,
            max_jobs=worker.max_jobs,
            held=(
                *(HeldJob(job.fair_key, job.losses > 0) for job in worker.jobs),
                *self._since.get(worker.id, ()),
            ),
            num_waiting=int(worker.load.get("num_waiting") or 0),
            prefix_keys=frozenset(reported).union(sent.keys if sent else ()),
        )

    def _forget_all_but(self, alive: set[UUID]) -> None:
        for gone in self._sent.keys() - alive:
            del self._sent[gone]
        for known in (self._suspected, self._awaited):
            for gone in known.keys() - alive:
                del known[gone]
        self._not_serving &= alive
