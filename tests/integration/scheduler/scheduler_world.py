"""Jobs and workers in a real database. Fake workers have a real gRPC server: the scheduler watches its health."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from sqlalchemy import text

from octavo_common import ids, store
from octavo_common.db.engine import Database
from octavo_common.jobs.model import Job, JobState, NewJob, NewProcess
from octavo_common.jobs.spec import GenerationResult, GenerationSpec, ModelCard, UsageRecord
from octavo_common.rpc.server import RpcServer, make_server

TOKEN = "token-of-the-tests"
DIGEST = "d" * 64


def card(*, digest: str = DIGEST) -> ModelCard:
    return ModelCard(
        name="tiny",
        digest=digest,
        family="llama",
        numerics_id="float32/test",
        tokenizer_digest="t" * 64,
        max_sequence_tokens=512,
        context_length=512,
        block_size=16,
        num_blocks=64,
        vocab_size=100,
    )


def new_job(**changes: Any) -> NewJob:
    spec = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=8)
    values: dict[str, Any] = {
        "id": ids.new_job_id(),
        "tenant": "acme",
        "model": "tiny",
        "model_digest": DIGEST,
        "payload": spec.to_json(),
        "prompt_ids": (1, 2, 3),
        "request_digest": "r",
    }
    return NewJob(**{**values, **changes})


class World:
    def __init__(self, dsn: str, database: Database) -> None:
        self.dsn = dsn
        self.database = database
        self.jobs = store.JobStore(database)
        self.streams = store.StreamStore(database)
        self.placement = store.PlacementStore(database)
        self.work = store.WorkStore(database)
        self.processes = store.ProcessStore(database)
        self.tenants = store.TenantStore(database)
        self.servers: dict[UUID, RpcServer] = {}

    async def submit(self, **changes: Any) -> Job:
        return (await self.jobs.submit(new_job(**changes), max_queued=None))[0]

    async def worker(self, *, lease_s: float = 15.0, max_jobs: int = 8, **changes: Any) -> UUID:
        """A worker that lives as far as anybody can see, and takes nothing by itself."""
        worker_id = ids.new_process_id()
        server = make_server()
        port = await server.start("127.0.0.1", 0)
        await server.set_serving(True)
        self.servers[worker_id] = server
        await self.processes.register(
            NewProcess(
                id=worker_id,
                role="worker",
                address=f"127.0.0.1:{port}",
                lease_s=lease_s,
                card=changes.pop("card", card()),
                capacity={"max_jobs": max_jobs},
                **changes,
            )
        )
        return worker_id

    async def kill(self, worker_id: UUID) -> None:
        """What a worker's sudden death looks like from outside."""
        await self.servers.pop(worker_id).grpc.stop(None)

    async def close(self) -> None:
        for server in self.servers.values():
            await server.grpc.stop(None)

    async def get(self, job: Job) -> Job:
        return await self.jobs.get(job.id, tenant=None)

    async def finish(self, job: Job) -> bool:
        usage = UsageRecord(prompt_tokens=3, completion_tokens=1)
        result = GenerationResult(token_ids=(1,), text="t", finish_reason="stop", usage=usage)
        return await self.work.finish(job.id, job.fence, result=result)

    async def until(self, job: Job, state: JobState, within_s: float) -> Job:
        async def reached() -> Job | None:
            now = await self.get(job)
            return now if now.state is state else None

        return await eventually(reached, within_s)

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        async with self.database.begin() as connection:
            found = await connection.execute(text(statement), values)
            return list(found.all()) if found.returns_rows else []

    async def leader_pid(self) -> int | None:
        """Pid of the placing scheduler, found by who holds the lock."""
        rows = await self.sql(
            "select a.application_name, a.pid from pg_locks l join pg_stat_activity a using (pid)"
            " where l.locktype = 'advisory' and l.granted and l.objid = 1 and a.datname = current_database()"
        )
        return rows[0].pid if rows else None


async def eventually(probe: Callable[[], Awaitable[Any]], within_s: float) -> Any:
    """Ask until the answer is truthy; fails when the time is over."""
    end = time.monotonic() + within_s
    while True:
        answer = await probe()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {within_s} s"
        await asyncio.sleep(0.02)
