"""Jobs as gateways and operators see them: accept, read, cancel, retry. Knows nothing of placement or streams."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import ARRAY, Float, Integer, Text, Uuid, bindparam, insert, select, text
from sqlalchemy.dialects.postgresql import JSONB

from octavo_common import ids
from octavo_common.db.tables import job_events, jobs, tenants
from octavo_common.errors import FailedPrecondition, IdempotencyConflict, JobNotFound, QuotaExceeded
from octavo_common.jobs import transitions
from octavo_common.jobs.model import Job, JobEvent, JobState, NewJob
from octavo_common.store.base import Store
from octavo_common.store.changes import change
from octavo_common.store.rows import JOB_COLUMNS_OF_J, job_columns, light_job_columns, to_job

MAX_LISTED = 1000
# First half of the advisory lock's key: one lock per tenant, none of them shared with other uses of such locks.
_TENANT_LOCK = 0x0C7A

_LOCK_TENANT = text("select pg_advisory_xact_lock(:space, hashtext(:tenant))")

# A job for a worker that its gateway has chosen is assigned as it is made, by the rules of placement: only where nobody
# waits for the model, the worker has room and takes jobs, and the tenant has no limit that would have to be counted.
_INSERT = text(
    f"""
    with able as (
      select w.id, w.lease_s from processes w
      where w.id = :worker_id and w.role = 'worker' and w.card->>'digest' = :model_digest
        and not w.draining and w.suspected_at is null
        and w.heartbeat_at > now() - make_interval(secs => w.lease_s)
        and coalesce((w.capacity->>'max_jobs')::int, 1) > (
          select count(*) from jobs h where h.worker_id = w.id and h.state in ('assigned','running'))
        and not exists (select from jobs q where q.state = 'queued' and q.model_digest = :model_digest)
        and not exists (select from tenants t where t.name = :tenant and t.max_running is not null)
    ), j as (
      insert into jobs (id, kind, tenant, fair_key, cache_salt, model, model_digest, priority, payload, prompt_ids,
                        num_prompt_tokens, prefix_keys, stream_owner, deadline, traceparent, idempotency_key,
                        request_digest, state, fence, worker_id, assigned_at, lease_until)
      select :id, :kind, :tenant, :fair_key, :cache_salt, :model, :model_digest, :priority, :payload, :prompt_ids,
             :num_prompt_tokens, :prefix_keys, :stream_owner, now() + make_interval(secs => :timeout_s),
             :traceparent, :idempotency_key, :request_digest,
             case when able.id is null then 'queued' else 'assigned' end, (able.id is not null)::int, able.id,
             case when able.id is not null then now() end, now() + make_interval(secs => able.lease_s)
      from (values (1)) as one left join able on true
      where :max_queued is null or :max_queued > (
        select count(*) from jobs where tenant = :tenant and state = 'queued' and ended_at is null)
      on conflict do nothing
      returning *
    ), history as (
      insert into job_events (job_id, event, fence, process_id)
      select id, 'queued', 0, stream_owner from j union all
      select id, 'assigned', fence, worker_id from j where worker_id is not null
    )
    select {JOB_COLUMNS_OF_J}, pg_notify(case when worker_id is null then '{transitions.JOBS_CHANNEL}'
      else 'octavo_worker_' || replace(worker_id::text, '-', '') end, '') from j
    """
).bindparams(
    bindparam("id", type_=Uuid()),
    bindparam("worker_id", type_=Uuid()),
    bindparam("stream_owner", type_=Uuid()),
    bindparam("payload", type_=JSONB()),
    bindparam("prompt_ids", type_=ARRAY(Integer)),
    bindparam("prefix_keys", type_=ARRAY(Text)),
    bindparam("timeout_s", type_=Float()),
    bindparam("max_queued", type_=Integer()),
    *(
        bindparam(name, type_=Text())
        for name in (
            "kind",
            "tenant",
            "fair_key",
            "cache_salt",
            "model",
            "model_digest",
            "traceparent",
            "idempotency_key",
            "request_digest",
        )
    ),
    *(bindparam(name, type_=Integer()) for name in ("priority", "num_prompt_tokens")),
)


class JobStore(Store):
    """For gateways and the command line."""

    async def submit(self, job: NewJob, *, max_queued: int | None, worker_id: UUID | None = None) -> tuple[Job, bool]:
        """Accept a job: once this returns it is committed. The flag is False when its idempotency key named another.

        ``worker_id``: the only worker of its model. The job is assigned to it at once if the scheduler would do the
        same; else it is queued as all are.

        Safe to repeat with the same id after a lost answer. Raises QuotaExceeded when the tenant has max_queued jobs
        queued, IdempotencyConflict when the key was used with another request, Unavailable.
        """
        values = {**_insert_values(job, max_queued), "worker_id": worker_id}
        if max_queued is None:
            rows = await self._run(_INSERT, values)
        else:
            async with self._transaction() as connection:
                # The lock's statement is apart: the next one must see what earlier holders have committed.
                await connection.execute(_LOCK_TENANT, {"space": _TENANT_LOCK, "tenant": job.tenant})
                rows = (await connection.execute(_INSERT, values)).all()
        if rows:
            return to_job(rows[0]._mapping), True
        existing = await self.existing(job)
        if existing is not None:
            return existing, existing.id == job.id
        if max_queued is None:  # the id is another tenant's: only a forged one can be
            raise IdempotencyConflict(job.idempotency_key or str(job.id))
        raise QuotaExceeded(
            f"tenant {job.tenant!r} has {max_queued} queued jobs, and that is its limit",
            hint="try again when some of them have run",
            retry_after_s=1.0,
        )

    async def existing(self, job: NewJob) -> Job | None:
        """The job that this request has made before: by its idempotency key, or by its id when an answer was lost.

        Raises IdempotencyConflict when the key was used with another request.
        """
        same = jobs.c.id == job.id
        if job.idempotency_key is not None:
            same |= jobs.c.idempotency_key == job.idempotency_key
        rows = await self._run(select(*job_columns).where(jobs.c.tenant == job.tenant, same))
        if not rows:
            return None
        if rows[0].request_digest != job.request_digest:
            raise IdempotencyConflict(job.idempotency_key or str(job.id))
        return to_job(rows[0]._mapping)

    async def get(self, job_id: UUID, *, tenant: str | None) -> Job:
        """Read a job; tenant None sees all. Raises JobNotFound."""
        statement = select(*job_columns).where(jobs.c.id == job_id)
        if tenant is not None:
            statement = statement.where(jobs.c.tenant == tenant)
        rows = await self._run(statement)
        if not rows:
            raise JobNotFound(str(job_id))
        return to_job(rows[0]._mapping)

    async def list(
        self,
        *,
        tenant: str | None,
        states: Collection[JobState] = (),
        model: str = "",
        limit: int = 50,
        before: UUID | None = None,
        kind: str = "",
    ) -> list[Job]:
        """Read jobs, newest first, without their large columns; `before` is the last id of the page before.

        Of one kind, if it is named: then they have their payloads, too, apart from the large fields of those.
        """
        statement = (
            select(*light_job_columns(with_payload=bool(kind))).order_by(jobs.c.id.desc()).limit(min(limit, MAX_LISTED))
        )
        if tenant is not None:
            statement = statement.where(jobs.c.tenant == tenant)
        if states:
            statement = statement.where(jobs.c.state.in_([state.value for state in states]))
        if model:
            statement = statement.where(jobs.c.model == model)
        if kind:
            statement = statement.where(jobs.c.kind == kind)
        if before is not None:
            statement = statement.where(jobs.c.id < before)
        return [to_job(row._mapping) for row in await self._run(statement)]

    async def cancel(self, job_id: UUID, *, tenant: str | None) -> Job:
        """End a job that waits, ask the worker of one that runs, leave an ended one. Raises JobNotFound."""
        async with self._transaction() as connection:
            before, _ = await change(connection, job_id, lambda core, _: transitions.cancel(core), tenant=tenant)
            if before is None:
                raise JobNotFound(str(job_id))
            row = (await connection.execute(select(*job_columns).where(jobs.c.id == job_id))).mappings().one()
            return to_job(row)

    async def retry(self, job_id: UUID, *, tenant: str | None) -> Job:
        """Queue a copy of an ended job under a new id, with as much time as the first had.

        Raises JobNotFound, FailedPrecondition while it has not ended or once its content has expired, QuotaExceeded.
        """
        old = await self.get(job_id, tenant=tenant)
        if not old.state.ended:
            raise FailedPrecondition(f"job {job_id} has not ended", hint="cancel it first, or wait for its end")
        if not old.content_kept:
            raise FailedPrecondition(f"the prompt of job {job_id} is not kept any more", hint="submit it again")
        limits = await self._run(select(tenants.c.max_queued).where(tenants.c.name == old.tenant))
        copy = NewJob(
            id=ids.new_job_id(),
            tenant=old.tenant,
            model=old.model,
            model_digest=old.model_digest,
            payload=old.payload,
            prompt_ids=old.prompt_ids,
            prefix_keys=old.prefix_keys,
            kind=old.kind,
            fair_key=old.fair_key,
            cache_salt=old.cache_salt,
            priority=old.priority,
            timeout_s=None if old.deadline is None else (old.deadline - old.created_at).total_seconds(),
            traceparent=old.traceparent,
            request_digest=old.request_digest,
        )
        job, _ = await self.submit(copy, max_queued=limits[0].max_queued if limits else None)
        told = {"job_id": job_id, "event": "retried", "fence": old.fence, "details": {"job": str(job.id)}}
        await self._run(insert(job_events).values(told))
        return job

    async def events(self, job_id: UUID, *, tenant: str | None) -> list[JobEvent]:
        """Read what happened to a job, oldest first. Raises JobNotFound."""
        statement = (
            select(job_events.c.time, job_events.c.event, job_events.c.fence, job_events.c.process_id,
                   job_events.c.details)
            .join(jobs, jobs.c.id == job_events.c.job_id)
            .where(job_events.c.job_id == job_id)
            .order_by(job_events.c.id)
        )  # fmt: skip
        if tenant is not None:
            statement = statement.where(jobs.c.tenant == tenant)
        rows = await self._run(statement)
        if not rows:  # every job has at least its first event
            raise JobNotFound(str(job_id))
        return [JobEvent(**row._mapping) for row in rows]


def _insert_values(job: NewJob, max_queued: int | None) -> dict[str, object]:
    return {
        "max_queued": max_queued,
        "id": job.id,
        "kind": job.kind,
        "tenant": job.tenant,
        "fair_key": job.fair_key or job.tenant,
        "cache_salt": job.cache_salt,
        "model": job.model,
        "model_digest": job.model_digest,
        "priority": job.priority,
        "payload": dict(job.payload),
        "prompt_ids": list(job.prompt_ids),
        "num_prompt_tokens": len(job.prompt_ids),
        "prefix_keys": list(job.prefix_keys),
        "stream_owner": job.stream_owner,
        "timeout_s": job.timeout_s,
        "traceparent": job.traceparent,
        "idempotency_key": job.idempotency_key,
        "request_digest": job.request_digest,
    }
