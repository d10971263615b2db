"""What keeps the job table in order: lost leases, passed deadlines, old rows. Any number may run at once.

Rule 10 of leases is the caller's: to reap only after a whole lease of unbroken contact, and not before one lease after
the server's start (Due.server_age_s), so that owners renew first.
"""

from __future__ import annotations

from sqlalchemy import text

from octavo_common.jobs import transitions
from octavo_common.jobs.model import GENERATION, Pruned, Reaped
from octavo_common.store.base import Store
from octavo_common.store.changes import CORE_COLUMNS, to_core, write

# Owners that live look after their jobs themselves; they are left out here, so that they never fill the page.
_IS_LEASE_OVER = """
    j.state in ('assigned','running') and j.lease_until <= now()
    and not exists (select from processes o where o.id = j.stream_owner
                    and o.heartbeat_at > now() - make_interval(secs => o.lease_s))
"""
_IS_LATE = "j.state = 'queued' and j.deadline <= now()"
_LEASE_OVER = text(
    f"select {CORE_COLUMNS} from jobs j where {_IS_LEASE_OVER} order by j.id limit :limit for update of j skip locked"
)
_LATE = text(
    f"select {CORE_COLUMNS} from jobs j where {_IS_LATE} "
    "order by j.deadline, j.id limit :limit for update of j skip locked"
)
# Columns of a Due: nearly always there is nothing to do, and one statement says so.
DUE_COLUMNS = f"""
    exists (select from jobs where state = 'queued' and kind = '{GENERATION}') as queued,
    exists (select from jobs j where {_IS_LATE}) as late,
    exists (select from jobs j where {_IS_LEASE_OVER}) as lost,
    (select extract(epoch from min(j.lease_until) - now())::float8 from jobs j
       where j.state in ('assigned','running')) as next_s,
    extract(epoch from now() - pg_postmaster_start_time())::float8 as server_age_s
"""

_PRUNE_CONTENTS = text(
    """
    with old as (
      select id from jobs where ended_at < now() - make_interval(secs => :retention_s) and content_kept
        and ended_at is not null
      order by ended_at, id limit :limit for update skip locked
    )
    update jobs j set content_kept = false, prompt_ids = '{}', emitted_ids = '{}', prefix_keys = '{}',
      payload = j.payload - 'stop' - 'prompt' - 'bad_words' - 'grammar' - 'logit_bias' - 'allowed_token_ids'
        - 'stop_token_ids' - 'recipe_yaml' - 'recipe_texts',
      result = j.result - 'token_ids' - 'text' - 'logprobs' - 'prompt_logprobs' - 'others' - 'files'
    from old where j.id = old.id
    """
)
_PRUNE_JOBS = text(
    """
    with old as (
      select id from jobs where ended_at < now() - make_interval(secs => :retention_s) and ended_at is not null
      order by ended_at, id limit :limit for update skip locked
    ), history as (
      delete from job_events e using old where e.job_id = old.id
    )
    delete from jobs j using old where j.id = old.id
    """
)
_PRUNE_PROCESSES = text(
    """
    with old as (
      select id from processes p where heartbeat_at < now() - make_interval(secs => greatest(:retention_s, lease_s * 2))
      order by heartbeat_at, id limit :limit for update skip locked
    )
    delete from processes p using old where p.id = old.id
    """
)
# Figures outlive contents by this factor.
_FIGURES_FACTOR = 7.0


class Upkeep(Store):
    """The part of PlacementStore that has nothing to do with placing."""

    async def reap(self, limit: int = 500) -> list[Reaped]:
        """Queue again what lost its worker: the lease is over, and no living stream owner looks after it."""
        async with self._transaction() as connection:
            rows = (await connection.execute(_LEASE_OVER, {"limit": limit})).mappings().all()
            found = [(row["id"], transitions.reap(core, facts=facts)) for row in rows for core, facts in [to_core(row)]]
            decisions = [(job_id, decision) for job_id, decision in found if decision is not None]
            await write(connection, decisions)
        return [
            Reaped(id=job_id, state=d.after.state, fence=d.after.fence, losses=d.after.losses)
            for job_id, d in decisions
        ]

    async def expire_deadlines(self, limit: int = 500) -> int:
        """Fail the queued jobs whose deadline has passed; returns how many."""
        async with self._transaction() as connection:
            rows = (await connection.execute(_LATE, {"limit": limit})).mappings().all()
            found = [
                (row["id"], transitions.expire(core, facts=facts)) for row in rows for core, facts in [to_core(row)]
            ]
            decisions = [(job_id, decision) for job_id, decision in found if decision is not None]
            await write(connection, decisions)
        return len(decisions)

    async def prune(self, retention_s: float, limit: int = 500, *, delete_after_s: float | None = None) -> Pruned:
        """Empty the contents of jobs that ended retention_s ago, delete the rows of those that ended long ago.

        One chunk of each kind, oldest first; call it until nothing is left. delete_after_s: default 7 times as long.
        """
        delete_after_s = retention_s * _FIGURES_FACTOR if delete_after_s is None else delete_after_s
        counts: list[int] = []
        for statement, seconds in (
            (_PRUNE_CONTENTS, retention_s),
            (_PRUNE_JOBS, delete_after_s),
            (_PRUNE_PROCESSES, retention_s),
        ):
            async with self._transaction() as connection:
                counts.append((await connection.execute(statement, {"retention_s": seconds, "limit": limit})).rowcount)
        return Pruned(num_contents=counts[0], num_jobs=counts[1], num_processes=counts[2])
