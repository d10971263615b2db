"""A worker that speaks the real protocol and generates a script: what it releases, when, and how it dies is the test's.

It claims and ends jobs through the real WorkStore, so the rows are as real as with an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import grpc

from octavo.v1 import common_pb2, pool_pb2, worker_pb2, worker_pb2_grpc
from octavo_common import ids, store
from octavo_common.db.engine import Database
from octavo_common.jobs.model import Assignment, Job, NewProcess
from octavo_common.jobs.spec import GenerationResult, GenerationSpec, JobFailure, ModelCard, UsageRecord
from octavo_common.prefix import tokens_digest
from octavo_common.rpc.auth import TokenInterceptor
from octavo_common.rpc.server import RpcServer, make_server

TOKEN = "internal-token-of-the-test"
Script = Callable[[Job], list[int]]


def alphabet(job: Job) -> list[int]:
    """The letters from A on, as bytes: token 65 is "A"."""
    spec = GenerationSpec.from_json(dict(job.payload))
    return [65 + i % 26 for i in range(spec.max_tokens)]


@dataclass(eq=False)
class Log:
    """What the worker has of one job."""

    job: Job
    fence: int
    script: list[int]
    ids: list[int]
    end: worker_pb2.StreamEnd | None = None
    gone: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """One worker process in the test's event loop."""

    def __init__(
        self, database: Database, card: ModelCard, script: Script = alphabet, *, lease_s: float = 15.0
    ) -> None:
        self.id = ids.new_process_id()
        self.card = card
        self.script = script
        self.lease_s = lease_s
        self.work = store.WorkStore(database)
        self.processes = store.ProcessStore(database)
        self.placement = store.PlacementStore(database)
        self.logs: dict[UUID, Log] = {}
        self.num_streams = 0
        self.num_attached = 0
        self.server: RpcServer | None = None
        self.address = ""
        self.first_tokens: list[int] = []
        self.num_cuts = 0

    # --- life

    async def start(self) -> ScriptedWorker:
        self.server = make_server(interceptors=[TokenInterceptor(TOKEN)])
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self.server)
        port = await self.server.start("127.0.0.1", 0)
        await self.server.set_serving(True)
        self.address = f"127.0.0.1:{port}"
        await self.processes.register(
            NewProcess(
                id=self.id,
                role="worker",
                address=self.address,
                card=self.card,
                capacity={"max_jobs": 100},
                lease_s=self.lease_s,
                load={"num_running": 1, "num_waiting": 2, "num_free_blocks": 3, "num_total_blocks": 64},
            )
        )
        return self

    async def kill(self) -> None:
        """Like kill -9, as far as others can see: connections break, the row stays."""
        if self.server is not None:
            server, self.server = self.server, None
            for log in self.logs.values():
                log.gone = True
                async with log.changed:
                    log.changed.notify_all()
            await server.stop(0)

    # --- the queue

    async def take(self, job_id: UUID) -> Log:
        """Have the job placed here, and claim it."""
        await self.place(job_id)
        return await self.claim(job_id)

    async def place(self, job_id: UUID) -> None:
        """Have the job placed here."""
        jobs = {job.id: job for job in await self.placement.queue(100)}
        async with asyncio.timeout(5):
            while job_id not in jobs:
                await asyncio.sleep(0.01)
                jobs = {job.id: job for job in await self.placement.queue(100)}
        assignment = Assignment(job_id=job_id, fence=jobs[job_id].fence, worker_id=self.id)
        assert await self.placement.assign([assignment]) == [job_id]

    async def claim(self, job_id: UUID) -> Log:
        claimed = {c.job.id: c.job for c in await self.work.claim(self.id, 100)}
        job = claimed[job_id]
        log = Log(job=job, fence=job.fence, script=self.script(job), ids=list(job.emitted_ids))
        self.logs[job_id] = log
        return log

    async def release_tokens(self, job_id: UUID, count: int) -> None:
        """Generate so many more tokens of the script."""
        log = self.logs[job_id]
        async with log.changed:
            log.ids += log.script[len(log.ids) : len(log.ids) + count]
            log.changed.notify_all()

    async def finish(self, job_id: UUID, *, tell: bool = True) -> bool:
        """Generate the rest and commit the result; with tell, send the last message."""
        log = self.logs[job_id]
        await self.release_tokens(job_id, len(log.script))
        usage = UsageRecord(prompt_tokens=log.job.num_prompt_tokens, completion_tokens=len(log.ids), seed=7)
        result = GenerationResult(token_ids=tuple(log.ids), text=text_of(log.ids), finish_reason="length", usage=usage)
        done = await self.work.finish(job_id, log.fence, result=result)
        if done and tell:
            message = common_pb2.Usage(
                prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens, seed=7
            )
            await self._end(log, worker_pb2.StreamEnd(finish_reason=common_pb2.FINISH_REASON_LENGTH, usage=message))
        return done

    async def fail(self, job_id: UUID, failure: JobFailure, grpc_code: int) -> None:
        log = self.logs[job_id]
        assert await self.work.finish(job_id, log.fence, failure=failure)
        told = common_pb2.Failure(
            code=failure.code,
            message=failure.message,
            hint=failure.hint,
            grpc_code=grpc_code,
            param=failure.param,
        )
        await self._end(log, worker_pb2.StreamEnd(failure=told))

    async def drop(self, job_id: UUID) -> None:
        """Forget the job: its streams end with ABORTED."""
        log = self.logs.pop(job_id)
        log.gone = True
        async with log.changed:
            log.changed.notify_all()

    async def cut(self) -> None:
        """Cut every stream; the worker lives and answers the next call."""
        self.num_cuts += 1
        for log in self.logs.values():
            async with log.changed:
                log.changed.notify_all()

    async def _end(self, log: Log, end: worker_pb2.StreamEnd) -> None:
        async with log.changed:
            log.end = end
            log.changed.notify_all()

    # --- the protocol

    async def Stream(self, request: worker_pb2.StreamRequest, context: Any) -> AsyncIterator[worker_pb2.StreamResponse]:
        self.num_streams += 1
        self.num_attached += 1
        self.first_tokens.append(request.first_token)
        try:
            async for message in self._messages(request, context):
                yield message
        finally:
            self.num_attached -= 1

    async def _messages(self, request: worker_pb2.StreamRequest, context: Any) -> AsyncIterator[Any]:
        num_cuts = self.num_cuts
        log = await self._find(request, context)
        position, checked = request.first_token, False
        while True:
            async with log.changed:
                while not (log.gone or log.end or len(log.ids) > position - (not checked) or self.num_cuts > num_cuts):
                    await log.changed.wait()
                if self.num_cuts > num_cuts:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                if log.gone:
                    await context.abort(grpc.StatusCode.ABORTED, "the job is not here any more")
                if not checked and tokens_digest(log.ids[:position]) != request.prefix_digest:
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "other tokens")
                checked = True
                fresh, end = log.ids[position:], log.end
            if not fresh and end is None:
                continue
            message = worker_pb2.StreamResponse(first_token=position, token_ids=fresh, text=text_of(fresh))
            position += len(fresh)
            if end is not None:
                message.end.CopyFrom(end)
            yield message
            if end is not None:
                return

    async def _find(self, request: worker_pb2.StreamRequest, context: Any) -> Log:
        job_id = UUID(request.job_id)
        async with asyncio.timeout(30):
            while job_id not in self.logs or self.logs[job_id].fence < request.fence:
                await asyncio.sleep(0.01)
        log = self.logs[job_id]
        if log.fence != request.fence:
            await context.abort(grpc.StatusCode.ABORTED, "another fence")
        return log

    async def GetRecords(self, request: worker_pb2.GetRecordsRequest, context: Any) -> worker_pb2.GetRecordsResponse:
        records = [worker_pb2.StepRecord(step=n) for n in range(1, 4) if n > request.after_step]
        return worker_pb2.GetRecordsResponse(records=records)

    async def GetPool(self, request: pool_pb2.GetPoolRequest, context: Any) -> pool_pb2.GetPoolResponse:
        return pool_pb2.GetPoolResponse(pool=pool_pb2.Pool(step=3, num_blocks=64, cell_used=[1] * 64))


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode()
