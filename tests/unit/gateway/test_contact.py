"""After an outage every heartbeat looks old: a worker is silent only after a whole lease of contact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from octavo_common.errors import Unavailable
from octavo_common.jobs.model import Job, JobState, OwnedJob
from octavo_gateway.contact import ContactRows


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Rows:
    """A database with one job, whose worker does not renew."""

    def __init__(self) -> None:
        self.away = False

    async def rows(self, job_ids: Sequence[UUID]) -> list[OwnedJob]:
        if self.away:
            raise Unavailable("away")
        common: dict[str, Any] = {"cancel_requested": False, "result": None, "error": None}
        return [
            OwnedJob(
                id=job_id,
                state=JobState.RUNNING,
                fence=1,
                stream_owner=None,
                worker_id=uuid4(),
                worker_address="127.0.0.1:1",
                worker_alive=False,
                **common,
            )
            for job_id in job_ids
        ]

    async def resume(self, job_id: UUID, how: Any) -> Job | None:
        return None


async def test_a_worker_is_believed_silent_only_after_a_lease_of_unbroken_contact() -> None:
    clock, database = ManualClock(), Rows()
    rows = ContactRows(database, lease_s=15.0, clock=clock)

    async def alive() -> bool:
        (row,) = await rows.rows([uuid4()])
        return row.worker_alive

    assert await alive()
    clock.now += 14.9
    assert await alive()
    clock.now += 0.2
    assert not await alive()
    database.away = True
    with pytest.raises(Unavailable):
        await alive()
    database.away = False
    assert await alive()
    clock.now += 15.1
    assert not await alive()
