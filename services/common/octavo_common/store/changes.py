"""Applies the pure rules of jobs/transitions.py to rows: lock, decide, write; with history and wake-ups, atomically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Integer, Text, Uuid, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from octavo_common.jobs.model import PULLED_KINDS, JobState
from octavo_common.jobs.transitions import Change, Core, Facts, channels

Rule = Callable[[Core, Facts], Change | None]

# Names of ours, and no parameters: the list is part of other statements.
IS_PULLED = f"j.kind in ({', '.join(repr(kind) for kind in sorted(PULLED_KINDS))})"
CORE_COLUMNS = f"""
    j.id, j.state, j.fence, j.worker_id, j.stream_owner, j.losses, j.total_losses, j.num_tokens, j.loss_tokens,
    j.emitted_ids, j.cancel_requested, {IS_PULLED} as pulled,
    coalesce(j.not_before <= now(), true) as ready,
    coalesce(j.deadline <= now(), false) as deadline_passed,
    coalesce(j.lease_until <= now(), false) as lease_over,
    exists(select from processes o where o.id = j.stream_owner
           and o.heartbeat_at > now() - make_interval(secs => o.lease_s)) as owner_fresh,
    extract(epoch from now() - j.created_at)::float8 as age_s
"""

# Whoever gives a tenant one job more to run counts first, one after the other.
LOCK_ASSIGNING = text(f"select pg_advisory_xact_lock({0x0C7B}, 2)")

_LOCK = text(
    f"select {CORE_COLUMNS} from jobs j where j.id = :id and (:tenant is null or j.tenant = :tenant) for update of j"
).bindparams(bindparam("id", type_=Uuid()), bindparam("tenant", type_=Text()))

_WRITE = text(
    """
    with changed as (
      update jobs set
        state = :state, fence = :fence, worker_id = :worker_id, stream_owner = :stream_owner, losses = :losses,
        total_losses = :total_losses, num_tokens = :num_tokens, loss_tokens = :loss_tokens,
        emitted_ids = coalesce(:emitted_ids, emitted_ids), cancel_requested = :cancel_requested,
        not_before = case when :delay_s > 0 then now() + make_interval(secs => :delay_s) else not_before end,
        lease_until = case when :held then lease_until end,
        started_at = case when not :unbegun then started_at end,
        error = coalesce(:error, error),
        ended_at = case when :ended then now() end
      where id = :id and fence = :old_fence and state = :old_state
      returning id
    ), history as (
      insert into job_events (job_id, event, fence, process_id, details)
      select id, :event, :fence, :process_id, :details from changed where :event <> ''
    )
    select pg_notify(channel, '') from changed, unnest(:channels) as channel
    """
).bindparams(
    *(bindparam(name, type_=Uuid()) for name in ("id", "worker_id", "stream_owner", "process_id")),
    *(bindparam(name, type_=Text()) for name in ("state", "event", "old_state")),
    bindparam("emitted_ids", type_=ARRAY(Integer)),
    bindparam("channels", type_=ARRAY(Text)),
    bindparam("error", type_=JSONB(none_as_null=True)),
    bindparam("details", type_=JSONB()),
)


def to_core(row: RowMapping) -> tuple[Core, Facts]:
    """The rules' view of a row selected with CORE_COLUMNS."""
    core = Core(
        state=JobState(row["state"]),
        fence=row["fence"],
        worker_id=row["worker_id"],
        stream_owner=row["stream_owner"],
        losses=row["losses"],
        total_losses=row["total_losses"],
        num_tokens=row["num_tokens"],
        loss_tokens=row["loss_tokens"],
        emitted_ids=tuple(row["emitted_ids"]),
        cancel_requested=row["cancel_requested"],
        pulled=row["pulled"],
    )
    facts = Facts(
        ready=row["ready"],
        deadline_passed=row["deadline_passed"],
        lease_over=row["lease_over"],
        owner_fresh=row["owner_fresh"],
        age_s=row["age_s"],
    )
    return core, facts


async def lock(connection: AsyncConnection, job_id: UUID, *, tenant: str | None = None) -> tuple[Core, Facts] | None:
    """Lock a job's row for this transaction; None when the tenant has no such job."""
    row = (await connection.execute(_LOCK, {"id": job_id, "tenant": tenant})).mappings().first()
    return None if row is None else to_core(row)


async def change(
    connection: AsyncConnection, job_id: UUID, rule: Rule, *, tenant: str | None = None
) -> tuple[Core | None, Change | None]:
    """Lock a row, apply a rule, write what it says. Returns the row before (None: no such job) and the change."""
    locked = await lock(connection, job_id, tenant=tenant)
    if locked is None:
        return None, None
    decision = rule(*locked)
    if decision is not None:
        await write(connection, [(job_id, decision)])
    return locked[0], decision


async def write(connection: AsyncConnection, decisions: Sequence[tuple[UUID, Change]]) -> None:
    """Write changes of rows that this transaction has locked."""
    if decisions:
        await connection.execute(_WRITE, [_values(job_id, decision) for job_id, decision in decisions])


def _values(job_id: UUID, decision: Change) -> dict[str, Any]:
    before, after = decision.before, decision.after
    return {
        "id": job_id,
        "old_fence": before.fence,
        "old_state": before.state.value,
        "state": after.state.value,
        "fence": after.fence,
        "worker_id": after.worker_id,
        "stream_owner": after.stream_owner,
        "losses": after.losses,
        "total_losses": after.total_losses,
        "num_tokens": after.num_tokens,
        "loss_tokens": after.loss_tokens,
        "emitted_ids": None if after.emitted_ids == before.emitted_ids else list(after.emitted_ids),
        "cancel_requested": after.cancel_requested,
        "delay_s": decision.delay_s,
        "held": after.worker_id is not None and not after.state.ended,
        "ended": after.state.ended,
        "unbegun": decision.unbegun,
        "error": None if decision.failure is None else decision.failure.to_json(),
        "event": decision.event,
        "process_id": decision.process_id,
        "details": dict(decision.details),
        "channels": sorted(channels(decision)),
    }
