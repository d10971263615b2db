"""All stores over one pool, with helpers for tests. The database's clock is moved by moving the rows' times."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import text

from octavo_common import ids, store
from octavo_common.db.engine import Database
from octavo_common.jobs.model import Assignment, Due, Job, NewJob, NewProcess
from octavo_common.jobs.spec import GenerationResult, GenerationSpec, ModelCard, UsageRecord

DIGEST = "d" * 64


def card(*, digest: str = DIGEST, numerics_id: str = "float32/test") -> ModelCard:
    return ModelCard(
        name="tiny",
        digest=digest,
        family="llama",
        numerics_id=numerics_id,
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


def result(*tokens: int) -> GenerationResult:
    usage = UsageRecord(prompt_tokens=3, completion_tokens=len(tokens))
    return GenerationResult(token_ids=tokens, text="text", finish_reason="stop", usage=usage)


class World:
    def __init__(self, dsn: str, database: Database) -> None:
        self.dsn = dsn
        self.database = database
        self.jobs = store.JobStore(database)
        self.streams = store.StreamStore(database)
        self.placement = store.PlacementStore(database)
        self.work = store.WorkStore(database)
        self.builds = store.BuildStore(database)
        self.processes = store.ProcessStore(database)
        self.keys = store.KeyStore(database)
        self.tenants = store.TenantStore(database)
        self.artifacts = store.ArtifactStore(database)

    async def submit(self, **changes: Any) -> Job:
        job, created = await self.jobs.submit(new_job(**changes), max_queued=None)
        assert created
        return job

    async def worker(self, *, lease_s: float = 15.0, max_jobs: int = 8, **changes: Any) -> UUID:
        worker_id = ids.new_process_id()
        process = NewProcess(
            id=worker_id,
            role="worker",
            address="127.0.0.1:1",
            lease_s=lease_s,
            card=changes.pop("card", card()),
            capacity={"max_jobs": max_jobs},
            **changes,
        )
        await self.processes.register(process)
        return worker_id

    async def gateway(self, *, lease_s: float = 15.0) -> UUID:
        gateway_id = ids.new_process_id()
        await self.processes.register(NewProcess(id=gateway_id, role="gateway", lease_s=lease_s))
        return gateway_id

    async def get(self, job: Job | UUID) -> Job:
        return await self.jobs.get(job if isinstance(job, UUID) else job.id, tenant=None)

    async def assign(self, job: Job, worker_id: UUID) -> Job:
        assignment = Assignment(job_id=job.id, fence=(await self.get(job)).fence, worker_id=worker_id)
        assert await self.placement.assign([assignment]) == [job.id]
        return await self.get(job)

    async def running(self, worker_id: UUID, **changes: Any) -> Job:
        """A new job that the worker has claimed."""
        job = await self.assign(await self.submit(**changes), worker_id)
        claimed = await self.work.claim(worker_id, 100)
        assert job.id in [c.job.id for c in claimed]
        return await self.get(job)

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        async with self.database.begin() as connection:
            found = await connection.execute(text(statement), values)
            return list(found.all()) if found.returns_rows else []

    async def age(self, what: UUID, seconds: float) -> None:
        """Let so much time pass for a job's lease and deadline, or for a process's heartbeat."""
        span = {"id": what, "s": seconds}
        await self.sql(
            "update jobs set lease_until = lease_until - make_interval(secs => :s), deadline = deadline -"
            " make_interval(secs => :s), not_before = not_before - make_interval(secs => :s),"
            " ended_at = ended_at - make_interval(secs => :s) where id = :id",
            **span,
        )
        await self.sql(
            "update processes set heartbeat_at = heartbeat_at - make_interval(secs => :s) where id = :id", **span
        )

    async def due(self) -> Due:
        """What a scheduler that leads for a moment is told."""
        connection = await self.placement.lead_connection()
        try:
            due = await self.placement.try_lead(connection)
            assert due is not None
            return due
        finally:
            await connection.invalidate()
            await connection.close()

    async def event_names(self, job: Job | UUID) -> list[str]:
        job_id = job if isinstance(job, UUID) else job.id
        return [event.event for event in await self.jobs.events(job_id, tenant=None)]
