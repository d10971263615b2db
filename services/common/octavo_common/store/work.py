"""The job table as a worker sees it: take what was assigned, end it under its fence, or give it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Text, Uuid, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from octavo_common.jobs import transitions
from octavo_common.jobs.model import Claimed, JobState
from octavo_common.jobs.spec import GenerationResult, JobFailure
from octavo_common.jobs.transitions import CANCELLED, FIRST_TOKEN_S, JOBS_CHANNEL, REQUEUES, Change, Core, Facts
from octavo_common.store.base import Store
from octavo_common.store.changes import change
from octavo_common.store.rows import JOB_COLUMNS_OF_J, to_job

# It waits for the disk, and the assignments before it are flushed with it: no other worker may get the same fence after
# a crash of the database. Jobs that were accepted and assigned in one transaction are on the disk with their fence
# already; should their claim be lost, the worker still holds the lease and claims again.
_CLAIM = text(
    f"""
    with mine as (
      select id from jobs where worker_id = :worker_id and state = 'assigned'
      order by priority desc, assigned_at, id limit :limit for update skip locked
    ), taken as (
      update jobs j set state = 'running', started_at = coalesce(j.started_at, now()),
        numerics_id = coalesce(w.numerics_id, j.numerics_id),
        numerics_changed = j.numerics_changed or (cardinality(j.emitted_ids) > 0 and j.numerics_id <> ''
                                                  and j.numerics_id <> coalesce(w.numerics_id, j.numerics_id))
      from mine left join (select card->>'numerics_id' as numerics_id from processes where id = :worker_id) w on true
      where j.id = mine.id
      returning j.*
    ), history as (
      insert into job_events (job_id, event, fence, process_id) select id, 'running', fence, worker_id from taken
    ), forgotten as (
      select * from jobs where worker_id = :worker_id and state = 'running' and not (id = any(:held))
    )
    select {JOB_COLUMNS_OF_J},
      extract(epoch from j.deadline - now())::float8 as deadline_in_s,
      extract(epoch from now() - j.created_at)::float8 as age_s,
      -- What earlier attempts know is in the row and in its history; a job that never moved costs no look.
      case when j.started_at < now() then extract(epoch from j.started_at - j.created_at)::float8 end
        as earlier_start_s,
      case when cardinality(j.emitted_ids) > 0 then (
        select (e.details->>'{FIRST_TOKEN_S}')::float8 from job_events e
        where e.job_id = j.id and e.details->>'{FIRST_TOKEN_S}' is not null order by e.id limit 1) end as first_token_s,
      case when j.fence > 1 then (
        select extract(epoch from now() - max(e.time))::float8 from job_events e
        where e.job_id = j.id and e.event in {REQUEUES}) end as requeued_ago_s,
      case when (select bool_and(fence = 1 and assigned_at = created_at) from taken)
           then set_config('synchronous_commit', 'off', true) end
    from (select * from taken union all select * from forgotten) j
    order by j.priority desc, j.assigned_at, j.id
    """
).bindparams(bindparam("worker_id", type_=Uuid()), bindparam("held", type_=ARRAY(Uuid())))

# Only a claim tells a fence, so whoever knows it has claimed the job; an assigned one's claim was lost by a crash.
_FINISH = text(
    f"""
    with j as (
      update jobs set state = :state, result = :result, error = :error, ended_at = now(), lease_until = null,
        num_tokens = greatest(num_tokens, :num_tokens)
      where id = :id and fence = :fence and state in ('assigned', 'running')
      returning id, fence, worker_id, stream_owner
    ), history as (
      insert into job_events (job_id, event, fence, process_id, details)
      select id, :state, fence, worker_id, :details from j
    )
    select pg_notify('{JOBS_CHANNEL}', ''),
      case when stream_owner is not null
           then pg_notify('octavo_gateway_' || replace(stream_owner::text, '-', ''), '') end
    from j
    """
).bindparams(
    bindparam("id", type_=Uuid()),
    bindparam("state", type_=Text()),
    bindparam("result", type_=JSONB(none_as_null=True)),
    bindparam("error", type_=JSONB(none_as_null=True)),
    bindparam("details", type_=JSONB()),
)

_LOOK = text("select state, fence, worker_id from jobs where id = :id").bindparams(bindparam("id", type_=Uuid()))


class WorkStore(Store):
    """For workers."""

    async def claim(self, worker_id: UUID, limit: int, *, held: Collection[UUID] | None = None) -> list[Claimed]:
        """Take up to `limit` jobs that were assigned to this worker.

        With `held` (all jobs that the worker knows it has), running rows of its own that are not among them come too:
        an earlier claim was committed and its answer lost.
        """
        if limit <= 0:
            return []
        # Without `held` nothing counts as forgotten: the row's own id is not in an unknown (null) set.
        values = {"worker_id": worker_id, "limit": limit, "held": None if held is None else list(held)}
        return [
            Claimed(
                job=to_job(row._mapping),
                deadline_in_s=row.deadline_in_s,
                age_s=row.age_s,
                wait_s=row.age_s if row.requeued_ago_s is None else max(0.0, row.requeued_ago_s),
                earlier_start_s=row.earlier_start_s,
                earlier_token_s=row.first_token_s,
            )
            for row in await self._run(_CLAIM, values)
        ]

    async def finish(
        self,
        job_id: UUID,
        fence: int,
        *,
        result: GenerationResult | None = None,
        failure: JobFailure | None = None,
        cancelled: bool = False,
    ) -> bool:
        """End a job under its fence with exactly one of the three. False: the lease was lost, drop everything.

        Safe to repeat after a lost answer: an end that this call has committed before is True again.
        """
        assert (result is not None) + (failure is not None) + cancelled == 1
        state = JobState.SUCCEEDED if result else JobState.FAILED if failure else JobState.CANCELLED
        return await self._end(
            job_id,
            fence,
            state,
            result=None if result is None else result.to_json(),
            failure=CANCELLED if cancelled else failure,
            num_tokens=0 if result is None else result.usage.completion_tokens,
        )

    async def _end(
        self,
        job_id: UUID,
        fence: int,
        state: JobState,
        *,
        result: Mapping[str, Any] | None,
        failure: JobFailure | None,
        num_tokens: int,
    ) -> bool:
        values = {
            "id": job_id,
            "fence": fence,
            "state": state.value,
            "result": None if result is None else dict(result),
            "error": None if failure is None else failure.to_json(),
            "num_tokens": num_tokens,
            "details": {} if failure is None else {"code": failure.code},
        }
        if await self._run(_FINISH, values):
            return True
        rows = await self._run(_LOOK, {"id": job_id})
        if not rows:
            return False
        core = Core(state=JobState(rows[0].state), fence=rows[0].fence, worker_id=rows[0].worker_id)
        return transitions.finished_before(core, fence=fence, state=state)

    async def release(
        self,
        job_id: UUID,
        fence: int,
        emitted_ids: Sequence[int] | None,
        *,
        first_token_ago_s: float | None = None,
    ) -> bool:
        """Give a job back with the tokens released so far (None: it has not begun). False: the lease was lost.

        Stop the job first, and leave it stopped whatever comes back: a token that leaves after this call, because its
        answer was lost, could be the beginning of a splice.
        """
        released = None if emitted_ids is None else tuple(emitted_ids)

        def rule(core: Core, facts: Facts) -> Change | None:
            return transitions.release(
                core, fence=fence, emitted_ids=released, facts=facts, first_token_ago_s=first_token_ago_s
            )

        async with self._transaction() as connection:
            _, decision = await change(connection, job_id, rule)
            return decision is not None
