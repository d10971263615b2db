"""Runs a whole worker process's service in this event loop, with the tiny engine in the place of a model."""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fakes.engines import Bench
from fakes.tiny_executor import VOCAB_SIZE, TinyExecutor, expected_output, next_token
from octavo.v1 import worker_pb2, worker_pb2_grpc
from octavo_common import ids, store
from octavo_common.db.engine import connect
from octavo_common.jobs.model import Assignment, Job, NewJob, NewProcess
from octavo_common.jobs.spec import GenerationSpec, ModelCard
from octavo_common.prefix import tokens_digest
from octavo_common.rpc.channel import internal_channel
from octavo_common.rpc.lifecycle import Lifecycle
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.app import Served, run
from octavo_worker.engine.types import Request, SamplingParams, StepStats
from octavo_worker.intake.grammars import NoGrammars
from octavo_worker.settings import WorkerSettings

TOKEN = "internal-token"
DIGEST = "d" * 64


class PacedExecutor(TinyExecutor):
    """Takes its time for each step, or hangs, as a test says."""

    step_s = 0.0
    # Steps that have begun.
    num_begun = 0

    def run(self, plan):
        self.num_begun += 1
        time.sleep(self.step_s)
        return super().run(plan)


@dataclass
class TinyWorker:
    """A worker, the stores of the others, and a channel to it."""

    dsn: str
    bundle: TokenizerBundle
    changes: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    num_blocks: int = 64
    block_size: int = 4
    bad: set[int] = field(default_factory=set)
    # What compiles grammars; the tiny engine follows none.
    grammars: Any = field(default_factory=NoGrammars)

    def __post_init__(self):
        self.executor = PacedExecutor(num_blocks=self.num_blocks, block_size=self.block_size, fails=self._fails)
        self.bench = Bench(
            num_blocks=self.num_blocks, block_size=self.block_size, executor=self.executor, **self.limits
        )
        self.tokenizer = Tokenizer(self.bundle)
        self.lifecycle = Lifecycle()
        self.pool = connect(self.dsn)
        self.jobs = store.JobStore(self.pool)
        self.streams = store.StreamStore(self.pool)
        self.placement = store.PlacementStore(self.pool)
        self.processes = store.ProcessStore(self.pool)
        self.artifacts = store.ArtifactStore(self.pool)
        self.gateway_id = ids.new_process_id()

    def _fails(self, plan):
        """A prompt that begins with a bad token fails."""
        return any(row.start == 0 and row.tokens[0] in self.bad for row in plan.rows)

    async def __aenter__(self):
        card = ModelCard(
            name="tiny",
            digest=DIGEST,
            family="tiny",
            numerics_id="tiny/test",
            tokenizer_digest=self.bundle.digest,
            max_sequence_tokens=self.bench.limits.max_sequence_tokens,
            context_length=self.bench.limits.max_sequence_tokens,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            vocab_size=VOCAB_SIZE,
        )
        served = Served(engine=self.bench.engine, card=card, bundle=self.bundle, eos_ids=(), grammars=self.grammars)
        values = {"database_url": self.dsn, "internal_token": TOKEN, "log_level": "error", "poll_s": 0.5}
        settings = WorkerSettings(**{**values, **self.changes})
        await self.processes.register(NewProcess(id=self.gateway_id, role="gateway", lease_s=600))
        self.task = asyncio.create_task(run(settings, lambda _: served, lifecycle=self.lifecycle))
        try:
            self.process = await until(self._registered, lambda found: found is not None)
        except BaseException:
            self.lifecycle.stop("it did not start")
            await asyncio.gather(self.task, return_exceptions=True)
            await self.pool.dispose()
            raise
        self.channel = internal_channel(self.process.address, TOKEN)
        self.stub = worker_pb2_grpc.WorkerServiceStub(self.channel)
        return self

    async def __aexit__(self, *_):
        self.executor.step_s = 0.0
        self.lifecycle.stop("the test is over")
        try:
            await self.task
        finally:
            await self.channel.close()
            await self.pool.dispose()

    async def _registered(self):
        if self.task.done():
            self.task.result()
        workers = await self.processes.list("worker", 3600.0)
        return workers[0] if workers else None

    @property
    def id(self) -> UUID:
        return self.process.id

    @property
    def stats(self) -> StepStats:
        return self.bench.engine.stats()

    def request(self, prompt, max_tokens=8, output=(), **sampling) -> Request:
        """What the engine makes of a job; for brute force."""
        params = {k: v for k, v in sampling.items() if k in SamplingParams.__slots__}
        params["stop_token_ids"] = frozenset(params.get("stop_token_ids", ()))
        return Request(
            id="", prompt=tuple(prompt), output=tuple(output), params=SamplingParams(max_tokens=max_tokens, **params)
        )

    def expected(self, prompt, max_tokens=8, **sampling) -> list[int]:
        return expected_output(self.request(prompt, max_tokens, **sampling), self.bench.limits.max_sequence_tokens)

    async def submit(self, prompt, max_tokens=8, *, row: dict[str, Any] | None = None, **spec) -> Job:
        values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 7}
        payload = GenerationSpec(max_tokens=max_tokens, **{**values, **spec}).to_json()
        job = NewJob(
            id=ids.new_job_id(),
            tenant="acme",
            model="tiny",
            model_digest=DIGEST,
            payload=payload,
            prompt_ids=tuple(prompt),
            **{"stream_owner": self.gateway_id, **(row or {})},
        )
        return (await self.jobs.submit(job, max_queued=None))[0]

    async def assign(self, job: Job) -> Job:
        fence = (await self.get(job)).fence
        assert await self.placement.assign([Assignment(job_id=job.id, fence=fence, worker_id=self.id)]) == [job.id]
        return await self.get(job)

    async def start(self, prompt, max_tokens=8, **spec) -> Job:
        return await self.assign(await self.submit(prompt, max_tokens, **spec))

    async def get(self, job: Job) -> Job:
        return await self.jobs.get(job.id, tenant=None)

    async def ended(self, job: Job) -> Job:
        return await until(lambda: self.get(job), lambda row: row.state.ended)

    def stream(self, job: Job, *, prefix=(), fence=None):
        request = worker_pb2.StreamRequest(
            job_id=str(job.id),
            fence=job.fence if fence is None else fence,
            first_token=len(prefix),
            prefix_digest=tokens_digest(list(prefix)),
        )
        return self.stub.Stream(request, timeout=20)


async def until(look, holds, timeout_s: float = 10.0):
    """Look until it holds; the last thing seen."""
    seen = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                seen = look()
                seen = await seen if inspect.isawaitable(seen) else seen
                if holds(seen):
                    return seen
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"it never held; last seen: {seen}") from None


async def read(call) -> tuple[list[int], str, worker_pb2.StreamEnd | None]:
    """All tokens and text of a stream, and its end. Checks that no token is missing or comes twice."""
    tokens: list[int] = []
    first = None
    text = ""
    async for message in call:
        first = message.first_token if first is None else first
        assert message.first_token == first + len(tokens)
        tokens += message.token_ids
        text += message.text
        if message.HasField("end"):
            return tokens, text, message.end
    return tokens, text, None


__all__ = ["DIGEST", "TOKEN", "PacedExecutor", "TinyWorker", "next_token", "read", "until"]
