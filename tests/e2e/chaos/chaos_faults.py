"""Breaks things: each fault is a coroutine function that acts once and notes when and what."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from chaos_cluster import Cluster, kill


@dataclass(slots=True, kw_only=True)
class Struck:
    """What a fault has hit."""

    at_s: float = 0.0
    pid: int = 0
    # Database time of the moment, for comparing with the jobs' histories.
    at_database: Any = None
    # Jobs that ran on the worker at that moment, by whether a gateway streams them.
    streamed: set[str] = field(default_factory=set)
    unstreamed: set[str] = field(default_factory=set)


class Faults:
    """All faults against one platform. `struck` tells of the last one."""

    NAMES = (
        "worker_killed",
        "gateway_killed",
        "scheduler_killed",
        "database_restarted",
        "database_away",
        "worker_paused",
    )

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.struck = Struck()

    async def worker_killed(self) -> None:
        """kill -9 of the worker that runs most jobs."""
        pid = self._choose_worker()
        kill(pid)
        self.struck.at_s = time.monotonic()

    async def gateway_killed(self) -> None:
        """kill -9 of a gateway."""
        pid = self._cluster.processes("gateway")[0].pid
        self.struck = Struck(pid=pid, at_s=time.monotonic())
        kill(pid)

    async def scheduler_killed(self) -> None:
        """kill -9 of the scheduler that places, and of a worker right after: its jobs need the standby."""
        pid = self._cluster.placing_scheduler()
        worker = self._choose_worker()
        kill(pid)
        kill(worker)
        self.struck.at_s = time.monotonic()

    async def database_restarted(self) -> None:
        """Stop Postgres and start it again at once."""
        self.struck = Struck(at_s=time.monotonic())
        await asyncio.to_thread(self._cluster.database.stop)
        await asyncio.to_thread(self._cluster.database.start)

    async def database_away(self) -> None:
        """Postgres is away for longer than the lease."""
        self.struck = Struck(at_s=time.monotonic())
        await asyncio.to_thread(self._cluster.database.stop)
        await asyncio.sleep(1.5 * self._cluster.lease_s)
        await asyncio.to_thread(self._cluster.database.start)

    async def worker_paused(self) -> None:
        """A worker stops for longer than its lease, and wakes up when its jobs are somebody else's."""
        pid = self._choose_worker()
        os.kill(pid, signal.SIGSTOP)
        self.struck.at_s = time.monotonic()
        try:
            await asyncio.sleep(1.75 * self._cluster.lease_s)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _choose_worker(self) -> int:
        rows = self._cluster.query(
            """select p.pid, now() as at, j.id::text, j.stream_owner is not null as streamed
               from jobs j join processes p on p.id = j.worker_id where j.state in ('assigned','running')"""
        )
        pids = [row["pid"] for row in rows]
        assert pids, "nothing runs"
        pid = max(set(pids), key=pids.count)
        mine = [row for row in rows if row["pid"] == pid]
        self.struck = Struck(
            pid=pid,
            at_database=rows[0]["at"],
            streamed={row["id"] for row in mine if row["streamed"]},
            unstreamed={row["id"] for row in mine if not row["streamed"]},
        )
        return pid


async def kill_whoever_runs(cluster: Cluster, job_id: str, *, timeout_s: float = 120.0) -> int:
    """Be the request that brings down its worker: kill -9 whoever runs it, until it has ended. Returns the kills."""
    num_kills, last_fence, end_s = 0, -1, time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        (row,) = cluster.query(
            """select j.state, j.fence, p.pid from jobs j left join processes p on p.id = j.worker_id
               where j.id = %s::uuid""",
            job_id,
        )
        if row["state"] in ("succeeded", "failed", "cancelled"):
            return num_kills
        if row["state"] == "running" and row["fence"] != last_fence and row["pid"]:
            last_fence = row["fence"]
            kill(row["pid"])
            num_kills += 1
        await asyncio.sleep(0.02)
    raise AssertionError(f"job {job_id} does not end")
