"""Judges what rows say about workers by how long the database has been answering. Knows no streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from octavo_common.clock import Clock
from octavo_common.jobs.model import Job, OwnedJob, Resumption


class Rows(Protocol):
    """The part of StreamStore that relays need."""

    async def rows(self, job_ids: Sequence[UUID]) -> list[OwnedJob]:
        """Rows of these jobs, ended ones too."""
        ...

    async def resume(self, job_id: UUID, how: Resumption) -> Job | None:
        """Queue a job again with the tokens that were sent; None when somebody was first."""
        ...


class ContactRows:
    """Reads rows, and believes that a worker is silent only after one lease of unbroken contact with the database.

    After an outage every heartbeat looks old, and whoever lives renews first.
    """

    def __init__(self, store: Rows, *, lease_s: float, clock: Clock) -> None:
        self._store = store
        self._lease_s = lease_s
        self._clock = clock
        self._since_s: float | None = None

    async def rows(self, job_ids: Sequence[UUID]) -> list[OwnedJob]:
        """Rows with worker_alive as far as it may be believed."""
        try:
            rows = await self._store.rows(job_ids)
        except Exception:
            self._since_s = None
            raise
        now = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now
        if now - self._since_s >= self._lease_s:
            return rows
        return [replace(row, worker_alive=True) for row in rows]

    async def resume(self, job_id: UUID, how: Resumption) -> Job | None:
        """See StreamStore.resume."""
        return await self._store.resume(job_id, how)
