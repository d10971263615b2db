"""Decides which worker runs which job. Pure: values in, assignments out; no clock, no randomness, no I/O.

Order of jobs: resumed before new (somebody has read their beginning and waits), larger priority first, then the fair
key with the fewest running jobs, then by age. A job that no worker can take now is passed over; it hides nobody.
Choice of worker: the one with the least work ahead, counted in tokens; a prefix that it holds is work saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple
from uuid import UUID

from octavo_common.jobs.model import Assignment, QueuedJob
from octavo_common.prefix import FIRST_LENGTH

# What one more job in the batch costs another, in prompt tokens: a prefix of 1,000 tokens outweighs eight jobs.
TOKENS_PER_JOB = 128


class HeldJob(NamedTuple):
    """A job that a worker holds already."""

    fair_key: str
    # It has cost a worker and made no progress since.
    lossy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker that may be given jobs."""

    id: UUID
    model_digest: str
    numerics_id: str
    max_jobs: int
    held: tuple[HeldJob, ...] = ()
    # Sequences that wait inside its engine: it is short of blocks or batch slots.
    num_waiting: int = 0
    # Of prompts whose beginning it is believed to have in its cache.
    prefix_keys: frozenset[str] = frozenset()


def place(jobs: Sequence[QueuedJob], workers: Sequence[WorkerView]) -> list[Assignment]:
    """Assign as many jobs as can be, in the order in which they were chosen. `jobs` come oldest first.

    Never beyond a worker's max_jobs or a tenant's limit; never another model; never two lossy jobs on one worker.
    """
    board = _Board(workers)
    tenants: Counter[str] = Counter()
    chosen: list[Assignment] = []
    for job in _in_order(jobs, board.running):
        if (
            job.tenant_max_running is not None
            and job.tenant_num_running + tenants[job.tenant] >= job.tenant_max_running
        ):
            continue
        slot = board.best(job)
        if slot is None:
            continue
        slot.take(job)
        tenants[job.tenant] += 1
        board.running[job.fair_key] += 1
        chosen.append(Assignment(job_id=job.id, fence=job.fence, worker_id=slot.worker.id))
    return chosen


def _in_order(jobs: Sequence[QueuedJob], running: Counter[str]) -> Iterable[QueuedJob]:
    """Yield jobs class by class; within a class always the oldest of the fair key with the fewest running jobs.

    `running` is changed by the caller while this generator runs, which is what makes it fair within a round.
    """
    classes: dict[tuple[bool, int], dict[str, list[tuple[int, QueuedJob]]]] = {}
    for index, job in enumerate(jobs):
        by_key = classes.setdefault((not job.resumed, -job.priority), {})
        by_key.setdefault(job.fair_key, []).append((index, job))
    for order in sorted(classes):
        heap = [(running[key], queue[0][0], key, queue, 0) for key, queue in classes[order].items()]
        heapify(heap)
        while heap:
            _, _, key, queue, turn = heap[0]
            yield queue[turn][1]
            # Only this key's count can have changed.
            if turn + 1 == len(queue):
                heappop(heap)
            else:
                heapreplace(heap, (running[key], queue[turn + 1][0], key, queue, turn + 1))


class _Slot:
    """A worker while a round gives it jobs."""

    def __init__(self, worker: WorkerView) -> None:
        self.worker = worker
        self.num_jobs = len(worker.held)
        self.has_lossy = any(job.lossy for job in worker.held)
        # Work ahead of a new job, in tokens.
        self.tokens_ahead = (self.num_jobs + worker.num_waiting) * TOKENS_PER_JOB
        self.new_keys: set[str] = set()

    def can_take(self, job: QueuedJob) -> bool:
        return (
            self.worker.model_digest == job.model_digest
            and self.num_jobs < self.worker.max_jobs
            and not (job.losses > 0 and self.has_lossy)
        )

    def cost(self, job: QueuedJob) -> int:
        """Tokens of work before the job's first new token, as far as one can know."""
        return self.tokens_ahead + max(job.num_prompt_tokens - self.num_cached_tokens(job), 0)

    def num_cached_tokens(self, job: QueuedJob) -> int:
        for index in range(len(job.prefix_keys) - 1, -1, -1):
            key = job.prefix_keys[index]
            if key in self.worker.prefix_keys or key in self.new_keys:
                return FIRST_LENGTH << index
        return 0

    def take(self, job: QueuedJob) -> None:
        self.tokens_ahead = self.cost(job) + TOKENS_PER_JOB
        self.num_jobs += 1
        self.has_lossy = self.has_lossy or job.losses > 0
        self.new_keys.update(job.prefix_keys)


class _Board:
    """All workers during a round, by model."""

    def __init__(self, workers: Sequence[WorkerView]) -> None:
        self._by_model: dict[str, list[_Slot]] = {}
        for worker in workers:
            self._by_model.setdefault(worker.model_digest, []).append(_Slot(worker))
        # Held jobs per fair key.
        self.running: Counter[str] = Counter(job.fair_key for worker in workers for job in worker.held)

    def best(self, job: QueuedJob) -> _Slot | None:
        """The worker to run a job; equal ones in the order in which they were given."""
        able = [slot for slot in self._by_model.get(job.model_digest, ()) if slot.can_take(job)]
        if not able:
            return None
        if job.num_emitted_tokens and job.numerics_id:
            # Another numerics id may go on with other tokens than the ones that were promised.
            able = [slot for slot in able if slot.worker.numerics_id == job.numerics_id] or able
        return min(able, key=lambda slot: slot.cost(job))
