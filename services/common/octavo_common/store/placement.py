"""The job table as the placing scheduler sees it: who waits, who serves, and what is given to whom.

Knows nothing of how placement decides. Upkeep (leases, deadlines, retention) is in upkeep.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Boolean, Uuid, bindparam, text
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from octavo_common.jobs.model import Assignment, Due, FleetJob, FleetWorker, QueuedJob
from octavo_common.jobs.spec import ModelCard
from octavo_common.store.base import translated
from octavo_common.store.changes import IS_PULLED, LOCK_ASSIGNING
from octavo_common.store.upkeep import DUE_COLUMNS, Upkeep

_LEAD_LOCK = (0x0C7B, 1)

# Asks pg_locks first: a session that takes an advisory lock twice would have to give it back twice.
_TRY_LEAD = text(
    f"""
    select case when exists(select from pg_locks where locktype = 'advisory' and classid = :space and objid = :key
                            and objsubid = 2 and pid = pg_backend_pid() and granted)
           then true else pg_try_advisory_lock(:space, :key) end as leads, {DUE_COLUMNS}
    """
)

# A page for each model that a live worker serves, without jobs of tenants at their limit: jobs that nobody can run now
# never hide others that somebody can.
_QUEUE = text(
    f"""
    with running as materialized (
      select tenant, count(*) as num_running from jobs where state in ('assigned','running') group by tenant
    ), served as materialized (
      select distinct card->>'digest' as digest from processes
      where role = 'worker' and not draining and suspected_at is null
        and heartbeat_at > now() - make_interval(secs => lease_s)
    )
    select page.* from served cross join lateral (
      select j.id, j.fence, j.tenant, j.fair_key, j.model_digest, j.numerics_id, j.priority, j.fence > 0 as resumed,
        j.losses, j.total_losses, j.num_prompt_tokens, cardinality(j.emitted_ids) as num_emitted_tokens,
        coalesce((j.payload->>'max_tokens')::int, 0) as max_tokens, j.prefix_keys, j.traceparent,
        extract(epoch from now() - j.created_at)::float8 as age_s,
        t.max_running as tenant_max_running, coalesce(r.num_running, 0) as tenant_num_running, j.created_at
      from jobs j left join tenants t on t.name = j.tenant left join running r on r.tenant = j.tenant
      where j.state = 'queued' and j.model_digest = served.digest and not {IS_PULLED}
        and (j.not_before is null or j.not_before <= now()) and (j.deadline is null or j.deadline > now())
        and not j.cancel_requested
        and (t.max_running is null or coalesce(r.num_running, 0) < t.max_running)
      order by (j.fence > 0) desc, j.priority desc, j.created_at, j.id
      limit :limit
    ) page
    order by page.resumed desc, page.priority desc, page.created_at, page.id
    """
)

_FLEET = text(
    """
    select w.id, w.address, w.draining, w.card, w.load, coalesce((w.capacity->>'max_jobs')::int, 1) as max_jobs,
      extract(epoch from now() - w.heartbeat_at)::float8 as heartbeat_age_s,
      coalesce((select jsonb_agg(jsonb_build_array(j.id, j.fair_key,
          case when j.num_tokens > j.loss_tokens then 0 else j.losses end, j.num_tokens))
        from jobs j where j.worker_id = w.id and j.state in ('assigned','running')), '[]') as jobs
    from processes w
    where w.role = 'worker' and w.card is not null and w.suspected_at is null
      and w.heartbeat_at > now() - make_interval(secs => w.lease_s)
    order by w.started_at, w.id
    """
)

# Without waiting for the disk: whatever acts on an assignment commits its claim first, and that flushes both. An
# assignment that a crash of the database loses was never acted on.
_ASSIGN = text(
    f"""
    with wanted as (
      select distinct on (job_id) * from unnest(:job_ids, :fences, :worker_ids) with ordinality
        as a(job_id, fence, worker_id, rank) order by job_id, rank
    ), running as (
      select tenant, count(*) as num from jobs
      where state in ('assigned','running') and tenant in (select name from tenants where max_running is not null)
      group by tenant
    ), allowed as (
      select a.job_id, a.fence, w.id as worker_id, w.lease_s,
        t.max_running - coalesce(r.num, 0) as room,
        row_number() over (partition by j.tenant order by a.rank) as turn
      from wanted a
        join jobs j on j.id = a.job_id and j.fence = a.fence and j.state = 'queued' and not {IS_PULLED}
        join processes w on w.id = a.worker_id and not w.draining and w.suspected_at is null
          and w.heartbeat_at > now() - make_interval(secs => w.lease_s)
        left join tenants t on t.name = j.tenant left join running r on r.tenant = j.tenant
    ), taken as (
      update jobs j set state = 'assigned', fence = j.fence + 1, worker_id = a.worker_id, assigned_at = now(),
        lease_until = now() + make_interval(secs => a.lease_s), not_before = null
      from allowed a
      where j.id = a.job_id and j.fence = a.fence and j.state = 'queued' and not j.cancel_requested
        and (j.not_before is null or j.not_before <= now()) and (j.deadline is null or j.deadline > now())
        and (a.room is null or :counting and a.turn <= a.room)
      returning j.id, j.fence, j.worker_id, j.stream_owner
    ), history as (
      insert into job_events (job_id, event, fence, process_id) select id, 'assigned', fence, worker_id from taken
    )
    select id, pg_notify('octavo_worker_' || replace(worker_id::text, '-', ''), ''),
      case when stream_owner is not null
           then pg_notify('octavo_gateway_' || replace(stream_owner::text, '-', ''), '') end,
      set_config('synchronous_commit', 'off', true)
    from taken
    """
).bindparams(
    bindparam("counting", type_=Boolean()),
    bindparam("job_ids", type_=ARRAY(Uuid())),
    bindparam("fences", type_=ARRAY(BigInteger)),
    bindparam("worker_ids", type_=ARRAY(Uuid())),
)


class PlacementStore(Upkeep):
    """For the scheduler."""

    async def lead_connection(self) -> AsyncConnection:
        """Take the connection that holds the lead out of the pool, for as long as it leads. The caller closes it."""
        with translated():
            return await self._database.take()

    async def try_lead(self, connection: AsyncConnection) -> Due | None:
        """Become (or stay) the one scheduler that places, and learn what is to be done; None: another one leads.

        Raises Unavailable when connection and lead are lost.
        """
        with translated():
            row = (await connection.execute(_TRY_LEAD, {"space": _LEAD_LOCK[0], "key": _LEAD_LOCK[1]})).one()
        return Due(**{name: getattr(row, name) for name in Due.__dataclass_fields__}) if row.leads else None

    async def queue(self, limit: int) -> list[QueuedJob]:
        """Read who waits and could run now, in placing order: resumed first, larger priority, then by age.

        At most `limit` for each model that a live worker serves.
        """
        return [_to_queued(row) for row in await self._run(_QUEUE, {"limit": limit})]

    async def fleet(self) -> list[FleetWorker]:
        """Read the workers whose heartbeat is fresh and whom nobody has found dead since, with what they hold."""
        return [_to_worker(row) for row in await self._run(_FLEET)]

    async def assign(self, assignments: Sequence[Assignment]) -> list[UUID]:
        """Give jobs to workers; returns the ids of those that took. Never goes beyond a tenant's running limit.

        An assignment whose job is not queued under its fence, or whose worker drains or is dead, changes nothing.
        """
        if not assignments:
            return []
        took = {row.id for row in await self._run(_ASSIGN, _values(assignments, counting=False))}
        left = [a for a in assignments if a.job_id not in took]
        if left:
            async with self._transaction() as connection:
                # Two schedulers may believe for a moment that they lead: limits are counted one after the other.
                await connection.execute(LOCK_ASSIGNING)
                took |= {row.id for row in await connection.execute(_ASSIGN, _values(left, counting=True))}
        return [a.job_id for a in assignments if a.job_id in took]


def _values(assignments: Sequence[Assignment], *, counting: bool) -> dict[str, Any]:
    """Parameters of _ASSIGN. Without counting only jobs of tenants that have no limit are taken: no lock is needed."""
    return {
        "counting": counting,
        "job_ids": [a.job_id for a in assignments],
        "fences": [a.fence for a in assignments],
        "worker_ids": [a.worker_id for a in assignments],
    }


def _to_queued(row: Row[Any]) -> QueuedJob:
    values = {name: row._mapping[name] for name in QueuedJob.__dataclass_fields__}
    return QueuedJob(**{**values, "prefix_keys": tuple(row.prefix_keys)})


def _to_worker(row: Row[Any]) -> FleetWorker:
    held = tuple(FleetJob(UUID(job_id), fair_key, losses, num) for job_id, fair_key, losses, num in row.jobs)
    return FleetWorker(**{**row._mapping, "card": ModelCard.from_json(row.card), "jobs": held})
