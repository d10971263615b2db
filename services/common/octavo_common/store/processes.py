"""The processes of the platform: who lives, where, with what load; and the heartbeat that renews all leases."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ARRAY, BigInteger, Float, Integer, Text, Uuid, bindparam, delete, func, text, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from octavo_common.clock import Clock
from octavo_common.db.tables import processes
from octavo_common.errors import Unavailable
from octavo_common.jobs.model import HeartbeatAnswer, Held, NewProcess, ProcessRecord
from octavo_common.jobs.spec import ModelCard
from octavo_common.jobs.transitions import JOBS_CHANNEL
from octavo_common.store.base import Store

log = structlog.get_logger(__name__)

ANNOUNCE_PAUSE_S = 0.5

# Without waiting for the disk: a renewal that a crash of the database loses is made again, and the reaper waits for a
# whole lease after the server's start. An expired lease is renewed too while nobody has taken the job: after an outage
# of the database owners come first. A job that was lost without progress and now makes some wakes the scheduler, which
# places the next one of its kind; "cleared" reads the rows as they were before the statement.
_HEARTBEAT = text(
    f"""
    with beat as (
      update processes set heartbeat_at = now(), suspected_at = null, load = coalesce(:load, load)
      where id = :id returning lease_s
    ), held as (
      select * from unnest(:job_ids, :fences, :num_tokens) as h(job_id, fence, num_tokens)
    ), renewed as (
      update jobs j set num_tokens = greatest(j.num_tokens, h.num_tokens),
        lease_until = now() + make_interval(secs => coalesce((select lease_s from beat), 15))
      from held h
      where j.id = h.job_id and j.fence = h.fence and j.worker_id = :id and j.state in ('assigned','running')
      returning j.id, j.cancel_requested
    ), cleared as (
      select j.id from held h join jobs j on j.id = h.job_id
      where j.fence = h.fence and j.worker_id = :id and j.state = 'running'
        and j.losses > 0 and j.num_tokens <= j.loss_tokens and h.num_tokens > j.loss_tokens
    )
    select set_config('synchronous_commit', 'off', true), exists(select from beat) as known,
      array(select job_id from held except select id from renewed) as lost,
      array(select id from renewed where cancel_requested) as cancelled,
      (select count(pg_notify('{JOBS_CHANNEL}', '')) from cleared) as num_cleared
    """
).bindparams(
    bindparam("id", type_=Uuid()),
    bindparam("load", type_=JSONB(none_as_null=True)),
    bindparam("job_ids", type_=ARRAY(Uuid())),
    bindparam("fences", type_=ARRAY(BigInteger)),
    bindparam("num_tokens", type_=ARRAY(Integer)),
)

_LIST = text(
    """
    select id, role, address, http_address, metrics_address, host, pid, lease_s, draining, card, capacity, load,
      started_at, extract(epoch from now() - heartbeat_at)::float8 as heartbeat_age_s,
      heartbeat_at > now() - make_interval(secs => lease_s) as alive
    from processes
    where (cast(:role as text) is null or role = :role)
      and (cast(:max_age_s as float8) is null or heartbeat_at > now() - make_interval(secs => :max_age_s))
    order by started_at, id
    """
).bindparams(bindparam("role", type_=Text()), bindparam("max_age_s", type_=Float()))


class ProcessStore(Store):
    """For every service."""

    async def register(self, process: NewProcess) -> None:
        """Write the process's row, anew if it has one."""
        values = {name: getattr(process, name) for name in NewProcess.__dataclass_fields__}
        values["card"] = None if process.card is None else process.card.to_json()
        values["capacity"], values["load"] = dict(process.capacity), dict(process.load)
        fresh = {**values, "heartbeat_at": func.now(), "suspected_at": None}
        statement = insert(processes).values(values)
        await self._run(statement.on_conflict_do_update(index_elements=[processes.c.id], set_=fresh))

    async def announce(self, process: NewProcess, clock: Clock) -> None:
        """Register, however long the database is away: a process that gave up would only be started again, and later.

        Until that it serves nobody. Cancel it to end the waiting.
        """
        while True:
            try:
                await self.register(process)
            except Unavailable as error:
                log.warning("process.not_registered", error=error.message)
                await clock.sleep(ANNOUNCE_PAUSE_S)
            else:
                return

    async def unregister(self, process_id: UUID) -> None:
        """Remove the process's row: it stops in good order."""
        await self._run(delete(processes).where(processes.c.id == process_id))

    async def set_draining(self, process_id: UUID, draining: bool = True) -> None:
        """Say that the process takes nothing new."""
        await self._run(update(processes).where(processes.c.id == process_id).values(draining=draining))

    async def heartbeat(
        self, process_id: UUID, *, load: Mapping[str, Any] | None = None, held: Collection[Held] = ()
    ) -> HeartbeatAnswer:
        """Renew the process and all its leases in one statement. Load None keeps the last one."""
        values = {
            "id": process_id,
            "load": None if load is None else dict(load),
            "job_ids": [h[0] for h in held],
            "fences": [h[1] for h in held],
            "num_tokens": [h[2] for h in held],
        }
        (row,) = await self._run(_HEARTBEAT, values)
        return HeartbeatAnswer(lost=frozenset(row.lost), cancelled=frozenset(row.cancelled), known=row.known)

    async def list(self, role: str | None = None, max_age_s: float | None = None) -> list[ProcessRecord]:
        """Read the processes, oldest first; with max_age_s only those that were heard of since."""
        rows = await self._run(_LIST, {"role": role, "max_age_s": max_age_s})
        return [
            ProcessRecord(**{**row._mapping, "card": None if row.card is None else ModelCard.from_json(row.card)})
            for row in rows
        ]
