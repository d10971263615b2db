"""Jobs as the owner of their streams sees them: look, resume, adopt, detach. Knows nothing of text or transport."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Uuid, bindparam, select, text
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from octavo_common.db.tables import jobs
from octavo_common.errors import JobNotFound
from octavo_common.jobs import transitions
from octavo_common.jobs.model import Job, JobState, OwnedJob, Resumption
from octavo_common.jobs.transitions import Change, Core, Facts
from octavo_common.store.base import Store
from octavo_common.store.changes import change
from octavo_common.store.rows import job_columns, to_job

_OWNED = """
    select j.id, j.state, j.fence, j.stream_owner, j.worker_id, j.cancel_requested,
      coalesce(w.address, '') as worker_address,
      coalesce(w.heartbeat_at > now() - make_interval(secs => w.lease_s), false) as worker_alive,
      case when j.ended_at is not null then j.result end as result,
      case when j.ended_at is not null then j.error end as error
    from jobs j left join processes w on w.id = j.worker_id
"""
_BY_OWNER = text(_OWNED + "where j.stream_owner = :owner and j.ended_at is null").bindparams(
    bindparam("owner", type_=Uuid())
)
_BY_IDS = text(_OWNED + "where j.id = any(:ids)").bindparams(bindparam("ids", type_=ARRAY(Uuid())))
_SUSPECT = text(
    """
    update processes set suspected_at = now() where id = (
      select worker_id from jobs where id = :id and stream_owner = :owner and fence = :fence
        and state in ('assigned','running'))
    """
).bindparams(bindparam("id", type_=Uuid()), bindparam("owner", type_=Uuid()))


class StreamStore(Store):
    """For the gateway that owns streams."""

    async def owned(self, gateway_id: UUID) -> list[OwnedJob]:
        """Read the jobs that have not ended and whose streams this gateway owns."""
        return _to_owned(await self._run(_BY_OWNER, {"owner": gateway_id}))

    async def rows(self, job_ids: Collection[UUID]) -> list[OwnedJob]:
        """Read jobs by their ids, also ended ones; ids without a row are left out."""
        return _to_owned(await self._run(_BY_IDS, {"ids": list(job_ids)})) if job_ids else []

    async def resume(self, job_id: UUID, how: Resumption) -> Job | None:
        """Queue a job again behind the ids that its stream has sent.

        Returns the row: queued, or ended when it was cancelled, late, or has lost its worker too often. None: the
        fence, the owner or the state is another by now: read the row and act on what it says.
        """

        def rule(core: Core, facts: Facts) -> Change | None:
            return transitions.resume(
                core,
                fence=how.fence,
                owner=how.owner,
                emitted_ids=how.emitted_ids,
                facts=facts,
                why=how.why,
                first_token_ago_s=how.first_token_ago_s,
            )

        async with self._transaction() as connection:
            if how.worker_dead:
                # Before the job's row: heartbeats lock processes first, too.
                await connection.execute(_SUSPECT, {"id": job_id, "owner": how.owner, "fence": how.fence})
            _, decision = await change(connection, job_id, rule)
            if decision is None:
                await connection.rollback()
                return None
            return await _read(connection, job_id)

    async def adopt(self, job_id: UUID, *, owner: UUID, tenant: str | None, emitted_ids: Sequence[int]) -> Job:
        """Take a stream over for a client that has these ids. The caller then attaches or resumes.

        An ended job is returned as it is. Raises JobNotFound.
        """
        has = tuple(emitted_ids)
        async with self._transaction() as connection:
            before, _ = await change(
                connection,
                job_id,
                lambda core, _: transitions.adopt(core, owner=owner, emitted_ids=has),
                tenant=tenant,
            )
            if before is None:
                raise JobNotFound(str(job_id))
            return await _read(connection, job_id)

    async def detach(self, job_id: UUID, *, owner: UUID) -> None:
        """Give a stream up; the job goes on, and the reaper looks after it. Nothing happens if another owns it."""
        async with self._transaction() as connection:
            await change(connection, job_id, partial(_detach, owner))


def _detach(owner: UUID, core: Core, facts: Facts) -> Change | None:
    del facts
    return transitions.detach(core, owner=owner)


async def _read(connection: AsyncConnection, job_id: UUID) -> Job:
    return to_job((await connection.execute(select(*job_columns).where(jobs.c.id == job_id))).mappings().one())


def _to_owned(rows: Sequence[Row[Any]]) -> list[OwnedJob]:
    return [OwnedJob(**{**row._mapping, "state": JobState(row.state)}) for row in rows]
