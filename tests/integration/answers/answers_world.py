"""What the tests of answers share: the platform, its clients, and what the tiny engine must say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Self

import httpx
import openai
from fakes.gateway_world import RunningGateway, World, byte_bundle
from fakes.scripted_worker import TOKEN
from fakes.tiny_executor import expected_output
from fakes.tiny_worker import TinyWorker
from pydantic import SecretStr

import octavo
from octavo_common import store
from octavo_common.jobs.model import Assignment
from octavo_common.rpc.lifecycle import Lifecycle
from octavo_gateway.http import HttpServer
from octavo_gateway.openai.app import make_app
from octavo_worker.app import build_served, run
from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.settings import WorkerSettings

SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 11}


class Platform:
    """A gateway, a worker that takes whatever waits, and clients."""

    gateway: RunningGateway
    worker: TinyWorker

    def __init__(self, world: World) -> None:
        self.world = world
        self.url = ""

    async def start(self, worker: TinyWorker | ModelWorker | None = None) -> None:
        """With the worker, else one with the tiny engine."""
        self.worker = await self.world.stack.enter_async_context(worker or tiny_worker(self.world))  # type: ignore[assignment]
        self.gateway = await self.world.gateway()
        server = HttpServer(make_app(self.gateway.gateway.api, telemetry=self.world.telemetry))
        port = await server.start("127.0.0.1", 0)
        self.world.stack.push_async_callback(server.stop)
        self.url = f"http://127.0.0.1:{port}"
        self.placing = asyncio.create_task(self._place())
        self.world.stack.push_async_callback(self._stop_placing)

    async def _place(self) -> None:
        """The scheduler's part: everything goes to the one worker."""
        placement = self.worker.placement
        while True:
            waiting = await placement.queue(100)
            await placement.assign(
                [Assignment(job_id=job.id, fence=job.fence, worker_id=self.worker.id) for job in waiting]
            )
            await asyncio.sleep(0.02)

    async def _stop_placing(self) -> None:
        self.placing.cancel()
        await asyncio.gather(self.placing, return_exceptions=True)

    def sdk(self) -> octavo.AsyncClient:
        client = octavo.AsyncClient(f"127.0.0.1:{self.gateway.port}", api_key=self.world.key)
        self.world.stack.push_async_callback(client.close)
        return client

    async def blocking(self, work: Any) -> Any:
        """Work with the blocking client, in a thread."""

        def run() -> Any:
            with octavo.Client(f"127.0.0.1:{self.gateway.port}", api_key=self.world.key) as client:
                return work(client)

        return await asyncio.to_thread(run)

    def openai(self) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.world.key,
            max_retries=0,
            http_client=httpx.AsyncClient(trust_env=False, timeout=90.0),
        )
        self.world.stack.push_async_callback(client.close)
        return client


def tiny_worker(world: World, **changes: Any) -> TinyWorker:
    """A worker of the gateway's platform with the tiny engine; enter it."""
    return TinyWorker(world.dsn, byte_bundle(), changes={"internal_token": SecretStr(TOKEN)}, num_blocks=256, **changes)


class ModelWorker:
    """A worker as the process runs it, with a model from a folder; enter it."""

    def __init__(self, world: World, folder: Path) -> None:
        self.placement = store.PlacementStore(world.database)
        self._processes = store.ProcessStore(world.database)
        self._lifecycle = Lifecycle()
        self._settings = WorkerSettings(
            database_url=world.dsn,
            internal_token=SecretStr(TOKEN),
            log_level="error",
            poll_s=0.5,
            model=str(folder),
            model_name="tiny",
            kv_bytes=4 << 20,
            num_threads=1,
            precision="float32",
        )

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(run(self._settings, build_served, lifecycle=self._lifecycle))
        async with asyncio.timeout(60):
            while not (found := await self._processes.list("worker", 3600.0)):
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.05)
        self.id = found[0].id
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lifecycle.stop("the test is over")
        await self._task


def expected(prompt: str, max_tokens: int, choice: int = 0, **sampling: Any) -> list[int]:
    """The tokens of one answer by brute force."""
    request = Request(id="", prompt=tuple(prompt.encode()), params=SamplingParams(max_tokens=max_tokens, **sampling))
    return expected_output(request, 1024, choice)


def text_of(tokens: list[int] | tuple[int, ...]) -> str:
    return bytes(tokens).decode()


async def within(work: Awaitable[Any], timeout_s: float = 15.0) -> Any:
    return await asyncio.wait_for(work, timeout_s)
