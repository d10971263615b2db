"""Builds as edge builders see them: take the next one that waits, end it under its fence; and as they are listed.

Renewals are the heartbeat's, as for all jobs that a process holds. Knows nothing of what is built.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import ARRAY, Float, Text, Uuid, bindparam, text

from octavo_common.jobs.builds import BuildResult
from octavo_common.jobs.model import EDGE_BUILD, Claimed, JobState
from octavo_common.jobs.spec import JobFailure
from octavo_common.jobs.transitions import CANCELLED, REQUEUES
from octavo_common.store.changes import LOCK_ASSIGNING
from octavo_common.store.rows import JOB_COLUMNS_OF_J, to_job
from octavo_common.store.work import WorkStore

# Larger priority first, then by age; none of a tenant that runs as many jobs as it may. What this process is said to
# run and does not know of comes first: an earlier claim was committed and its answer lost. It waits for the disk: after
# a crash of the database nobody else may get the same fence.
_TAKE = text(
    f"""
    with forgotten as (
      select * from jobs where worker_id = :process_id and state = 'running' and kind = :kind
      order by id limit 1
    ), running as (
      select tenant, count(*) as num from jobs
      where state in ('assigned','running') and tenant in (select name from tenants where max_running is not null)
      group by tenant
    ), next as (
      select j.id from jobs j left join tenants t on t.name = j.tenant left join running r on r.tenant = j.tenant
      where j.state = 'queued' and j.kind <> 'generation' and j.kind = :kind and not j.cancel_requested
        and (j.not_before is null or j.not_before <= now()) and (j.deadline is null or j.deadline > now())
        and (t.max_running is null or coalesce(r.num, 0) < t.max_running)
        and not exists (select from forgotten)
      order by j.priority desc, j.created_at, j.id limit 1 for update of j skip locked
    ), taken as (
      update jobs j set state = 'running', fence = j.fence + 1, worker_id = :process_id, assigned_at = now(),
        lease_until = now() + make_interval(secs => :lease_s), not_before = null,
        started_at = coalesce(j.started_at, now())
      from next where j.id = next.id
      returning j.*
    ), history as (
      insert into job_events (job_id, event, fence, process_id) select id, 'running', fence, worker_id from taken
    )
    select {JOB_COLUMNS_OF_J},
      extract(epoch from j.deadline - now())::float8 as deadline_in_s,
      extract(epoch from now() - j.created_at)::float8 as age_s,
      case when j.started_at < now() then extract(epoch from j.started_at - j.created_at)::float8 end
        as earlier_start_s,
      case when j.fence > 1 then (
        select extract(epoch from now() - max(e.time))::float8 from job_events e
        where e.job_id = j.id and e.event in {REQUEUES}) end as requeued_ago_s
    from (select * from taken union all select * from forgotten) j
    """
).bindparams(
    bindparam("process_id", type_=Uuid()),
    bindparam("kind", type_=Text()),
    bindparam("lease_s", type_=Float()),
)

_KEPT = text(
    "select id from jobs where id = any(:ids) and (ended_at is null or content_kept)"
).bindparams(bindparam("ids", type_=ARRAY(Uuid())))  # fmt: skip


class BuildStore(WorkStore):
    """For edge builders."""

    async def take(self, process_id: UUID, *, lease_s: float) -> Claimed | None:
        """Take the build that is next, with a lease that the heartbeat renews; None: there is none to be had.

        For a process that has no build, as far as it knows: a builder has one at a time.
        """
        values = {"process_id": process_id, "kind": EDGE_BUILD, "lease_s": lease_s}
        async with self._transaction() as connection:
            await connection.execute(LOCK_ASSIGNING)
            row = (await connection.execute(_TAKE, values)).first()
        if row is None:
            return None
        return Claimed(
            job=to_job(row._mapping),
            deadline_in_s=row.deadline_in_s,
            age_s=row.age_s,
            wait_s=row.age_s if row.requeued_ago_s is None else max(0.0, row.requeued_ago_s),
            earlier_start_s=row.earlier_start_s,
        )

    async def end(
        self,
        job_id: UUID,
        fence: int,
        *,
        result: BuildResult | None = None,
        failure: JobFailure | None = None,
        cancelled: bool = False,
    ) -> bool:
        """End a build under its fence; a failed one may have a result, too. False: the lease was lost.

        Safe to repeat after a lost answer, as ``finish`` is.
        """
        assert not (failure and cancelled)
        assert result or failure or cancelled
        state = JobState.CANCELLED if cancelled else JobState.FAILED if failure else JobState.SUCCEEDED
        return await self._end(
            job_id,
            fence,
            state,
            result=None if result is None else result.to_json(),
            failure=CANCELLED if cancelled else failure,
            num_tokens=0 if result is None else len(result.stages),
        )

    async def kept(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Those of these jobs whose content is to be kept: they have not ended, or not long ago."""
        if not job_ids:
            return set()
        return {row.id for row in await self._run(_KEPT, {"ids": list(job_ids)})}
