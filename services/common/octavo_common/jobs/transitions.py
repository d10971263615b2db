"""The rules by which a job changes. Pure: the store applies them under a row lock, the explorer in all orders.

Every function takes the columns that rules look at (Core) and returns a Change, or None when somebody was first: then
nothing happens, and the caller reads the row and acts on what it says. Every change of owner bumps the fence. The hot
paths (assign, claim, finish, renew) are single statements in the store; a test holds them to these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from octavo_common.jobs.model import HELD, MAX_LOSSES, JobState
from octavo_common.jobs.spec import JobFailure

JOBS_CHANNEL = "octavo_jobs"
# Entry of an event's details: from acceptance to the first token, as whoever had it knows.
FIRST_TOKEN_S = "first_token_s"
# Events by which a job waits again.
REQUEUES = ("resumed", "reaped", "released")
# Back-off of a reaped job by its number of losses: 0.25 s, 1 s. Resumed jobs have somebody waiting and do not wait.
_BACKOFF_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The columns of a job that the rules look at."""

    state: JobState = JobState.QUEUED
    fence: int = 0
    worker_id: UUID | None = None
    stream_owner: UUID | None = None
    losses: int = 0
    total_losses: int = 0
    num_tokens: int = 0
    loss_tokens: int = 0
    emitted_ids: tuple[int, ...] = ()
    cancel_requested: bool = False
    # Of a kind that its service takes by itself.
    pulled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the database's clock says about a job."""

    # not_before has passed.
    ready: bool = True
    deadline_passed: bool = False
    lease_over: bool = False
    # The heartbeat of the stream's owner is younger than its lease.
    owner_fresh: bool = False
    # Since acceptance.
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A transition that takes place."""

    before: Core
    after: Core
    # Name of the entry in the job's history; empty: none.
    event: str
    # Who did it, if a process did.
    process_id: UUID | None = None
    failure: JobFailure | None = None
    # Time before which the job is not placed again.
    delay_s: float = 0.0
    # No worker has begun it after all: when one first took it is open again.
    unbegun: bool = False
    details: Mapping[str, str] = field(default_factory=lambda: {})


def worker_channel(process_id: UUID) -> str:
    """Where a worker listens for its assignments and cancellations."""
    return f"octavo_worker_{process_id.hex}"


def gateway_channel(process_id: UUID) -> str:
    """Where a gateway listens for changes of the jobs whose streams it owns."""
    return f"octavo_gateway_{process_id.hex}"


def channels(change: Change) -> frozenset[str]:
    """Whom to wake. Notifications are hints: who wakes reads its rows."""
    before, after = change.before, change.after
    woken: set[str] = set()
    if after.state is JobState.QUEUED or (after.state.ended and before.state in HELD):
        # Something to place, or room for something that waits.
        woken.add(JOBS_CHANNEL)
    if after.state.ended:
        woken.add(JOBS_CHANNEL)
    if before.worker_id is not None and (after.worker_id != before.worker_id or after.cancel_requested):
        woken.add(worker_channel(before.worker_id))
    if after.worker_id is not None and after.worker_id != before.worker_id:
        woken.add(worker_channel(after.worker_id))
    woken.update(gateway_channel(owner) for owner in (before.stream_owner, after.stream_owner) if owner is not None)
    return frozenset(woken)


def assign(core: Core, *, fence: int, worker: UUID, facts: Facts) -> Change | None:
    """Queued -> assigned, by the placing scheduler."""
    if core.pulled or core.fence != fence or not _is_free(core, facts):
        return None
    after = replace(core, state=JobState.ASSIGNED, fence=core.fence + 1, worker_id=worker)
    return Change(before=core, after=after, event="assigned", process_id=worker)


def take(core: Core, *, process: UUID, facts: Facts) -> Change | None:
    """Queued -> running, by a service that takes jobs of its kind by itself."""
    if not core.pulled or not _is_free(core, facts):
        return None
    after = replace(core, state=JobState.RUNNING, fence=core.fence + 1, worker_id=process)
    return Change(before=core, after=after, event="running", process_id=process)


def _is_free(core: Core, facts: Facts) -> bool:
    waits = core.state is JobState.QUEUED and not core.cancel_requested
    return waits and facts.ready and not facts.deadline_passed


def claim(core: Core, *, worker: UUID) -> Change | None:
    """Assigned -> running, by the worker."""
    if core.state is not JobState.ASSIGNED or core.worker_id != worker:
        return None
    return Change(before=core, after=replace(core, state=JobState.RUNNING), event="running", process_id=worker)


def renew(core: Core, *, fence: int, worker: UUID, num_tokens: int) -> Change | None:
    """The heartbeat of a worker that still holds the job; also after its lease is over, while nobody has taken it."""
    if core.state not in HELD or core.fence != fence or core.worker_id != worker:
        return None
    return Change(before=core, after=replace(core, num_tokens=max(core.num_tokens, num_tokens)), event="")


def finish(
    core: Core, *, fence: int, state: JobState, num_tokens: int = 0, failure: JobFailure | None = None
) -> Change | None:
    """Held -> succeeded, failed or cancelled, by the worker under its fence.

    It has claimed the job, or it would not know the fence; where the job is assigned, a crash has lost the claim.
    """
    assert state.ended
    if core.state not in HELD or core.fence != fence:
        return None
    after = replace(core, state=state, num_tokens=max(core.num_tokens, num_tokens))
    return Change(before=core, after=after, event=state.value, process_id=core.worker_id, failure=failure)


def finished_before(core: Core, *, fence: int, state: JobState) -> bool:
    """The same finish was committed already and its answer was lost: ends keep the fence."""
    return core.state is state and core.fence == fence and core.worker_id is not None


def release(
    core: Core,
    *,
    fence: int,
    emitted_ids: tuple[int, ...] | None,
    facts: Facts,
    first_token_ago_s: float | None = None,
) -> Change | None:
    """assigned, running -> queued, by a worker that drains or is full. No loss is counted.

    emitted_ids None: it had not begun, what the row says stays.
    """
    if core.state not in HELD or core.fence != fence:
        return None
    if emitted_ids is None:
        change = _requeue(core, core, event="released", by=core.worker_id, facts=facts, why="not_taken")
        return replace(change, unbegun=not core.total_losses and not core.emitted_ids)
    known = _first_token(emitted_ids, first_token_ago_s, facts)
    after = replace(core, emitted_ids=emitted_ids)
    return _requeue(core, after, event="released", by=core.worker_id, facts=facts, why="worker_left", known=known)


def resume(
    core: Core,
    *,
    fence: int,
    owner: UUID,
    emitted_ids: tuple[int, ...],
    facts: Facts,
    why: str = "",
    first_token_ago_s: float | None = None,
) -> Change | None:
    """queued, assigned, running -> queued, by the owner of the stream, with the ids that it has sent.

    The history says why, and when the first token came, if the owner has seen that.
    """
    if core.state.ended or core.stream_owner != owner or core.fence != fence:
        return None
    lost = _lose(core, emitted_ids) if core.state in HELD else core
    known = _first_token(emitted_ids, first_token_ago_s, facts)
    after = replace(lost, emitted_ids=emitted_ids)
    return _requeue(core, after, event="resumed", by=owner, facts=facts, why=why, known=known)


def reap(core: Core, *, facts: Facts) -> Change | None:
    """assigned, running -> queued, by the reaper: the lease is over, and no living gateway looks after the stream."""
    if core.state not in HELD or not facts.lease_over or (core.stream_owner is not None and facts.owner_fresh):
        return None
    lost = _lose(core, core.emitted_ids)
    delay_s = _BACKOFF_S * 4 ** (lost.losses - 1) if lost.losses else 0.0
    return _requeue(core, lost, event="reaped", by=None, facts=facts, why="lease_over", delay_s=delay_s)


def cancel(core: Core) -> Change | None:
    """Queued, assigned -> cancelled at once; running -> asks the worker. None: it has ended or was asked already."""
    if core.state in (JobState.QUEUED, JobState.ASSIGNED):
        after = replace(core, state=JobState.CANCELLED, cancel_requested=True)
        return Change(before=core, after=after, event="cancelled", failure=CANCELLED)
    if core.state is JobState.RUNNING and not core.cancel_requested:
        return Change(before=core, after=replace(core, cancel_requested=True), event="cancel_requested")
    return None


def expire(core: Core, *, facts: Facts) -> Change | None:
    """Queued -> failed when the deadline has passed. Workers count the deadlines of what they hold."""
    if core.state is not JobState.QUEUED or not facts.deadline_passed:
        return None
    return Change(before=core, after=replace(core, state=JobState.FAILED), event="failed", failure=DEADLINE)


def adopt(core: Core, *, owner: UUID, emitted_ids: tuple[int, ...]) -> Change | None:
    """Another gateway takes the stream over. None when the job has ended.

    The worker goes on undisturbed. While no worker has it, the row takes the reader's ids at once if they are not the
    beginning of what it holds; else the new owner attaches, finds other ids, and resumes.
    """
    if core.state.ended:
        return None
    after = replace(core, stream_owner=owner)
    if core.state is JobState.QUEUED and core.emitted_ids[: len(emitted_ids)] != emitted_ids:
        after = replace(after, fence=core.fence + 1, emitted_ids=emitted_ids, num_tokens=len(emitted_ids))
    return Change(before=core, after=after, event="adopted", process_id=owner)


def detach(core: Core, *, owner: UUID) -> Change | None:
    """The owner gives the stream up: nobody owns it, and the reaper looks after the job."""
    if core.stream_owner != owner or core.state.ended:
        return None
    return Change(before=core, after=replace(core, stream_owner=None), event="detached", process_id=owner)


CANCELLED = JobFailure(code="CANCELLED", message="the job was cancelled", status="CANCELLED")
DEADLINE = JobFailure(
    code="DEADLINE_EXCEEDED",
    message="the job's deadline has passed",
    hint="give it more time, or look at the queue with `octavo jobs list`",
    status="DEADLINE_EXCEEDED",
)
LOST = JobFailure(
    code="WORKER_LOST",
    message=f"the job lost its worker {MAX_LOSSES} times without any progress",
    hint="the request itself may bring workers down; the logs of the processes in the job's events say how",
    status="ABORTED",
)


def _lose(core: Core, emitted_ids: tuple[int, ...]) -> Core:
    """Count a loss, unless tokens came since the last one: progress clears the count."""
    num_tokens = max(core.num_tokens, len(emitted_ids))
    progressed = num_tokens > core.loss_tokens
    return replace(
        core,
        losses=0 if progressed else core.losses + 1,
        total_losses=core.total_losses + 1,
        loss_tokens=max(core.loss_tokens, num_tokens),
    )


def _first_token(emitted_ids: tuple[int, ...], ago_s: float | None, facts: Facts) -> dict[str, str]:
    """When the first of the tokens that are kept was there, for the history: later attempts cannot know it."""
    if not emitted_ids or ago_s is None:
        return {}
    return {FIRST_TOKEN_S: f"{max(0.0, facts.age_s - ago_s):.6f}"}


def _requeue(
    before: Core,
    core: Core,
    *,
    event: str,
    by: UUID | None,
    facts: Facts,
    why: str = "",
    known: Mapping[str, str] | None = None,
    delay_s: float = 0.0,
) -> Change:
    """Take the job from its worker; a cancelled, late or hopeless one ends here instead of waiting again."""
    free = replace(core, fence=core.fence + 1, worker_id=None, num_tokens=len(core.emitted_ids))
    details = {"worker": str(before.worker_id)} if before.worker_id is not None else {}
    details |= {"why": why} if why else {}
    details |= known or {}

    def ended(state: JobState, failure: JobFailure) -> Change:
        after = replace(free, state=state)
        told = {**details, "after": event, "code": failure.code}
        return Change(before=before, after=after, event=state.value, process_id=by, failure=failure, details=told)

    if core.cancel_requested:
        return ended(JobState.CANCELLED, CANCELLED)
    if facts.deadline_passed:
        return ended(JobState.FAILED, DEADLINE)
    if core.losses >= MAX_LOSSES:
        return ended(JobState.FAILED, LOST)
    after = replace(free, state=JobState.QUEUED)
    return Change(before=before, after=after, event=event, process_id=by, delay_s=delay_s, details=details)
