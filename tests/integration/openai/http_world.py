"""One gateway with its HTTP port, one scripted worker, and clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx
import openai
from fakes.gateway_world import RunningGateway, World
from fakes.scripted_worker import ScriptedWorker

from octavo_gateway.http import HttpServer
from octavo_gateway.openai.app import make_app

SILENCE_S = 0.3


class HttpWorld:
    """What a test of the HTTP API needs."""

    gateway: RunningGateway
    worker: ScriptedWorker

    def __init__(self, world: World) -> None:
        self.world = world
        self.url = ""

    async def start(self) -> None:
        self.gateway = await self.world.gateway()
        self.worker = await self.world.worker()
        api = self.gateway.gateway.api
        server = HttpServer(make_app(api, telemetry=self.world.telemetry, max_body_bytes=200_000, silence_s=SILENCE_S))
        port = await server.start("127.0.0.1", 0)
        self.world.stack.push_async_callback(server.stop)
        self.url = f"http://127.0.0.1:{port}"

    def openai(self, key: str | None = None, **options: Any) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.world.key if key is None else key,
            max_retries=0,
            http_client=httpx.AsyncClient(trust_env=False, timeout=20.0),
            **options,
        )
        self.world.stack.push_async_callback(client.close)
        return client

    def raw(self, key: str | None = None) -> httpx.AsyncClient:
        key = self.world.key if key is None else key
        client = httpx.AsyncClient(
            base_url=self.url, trust_env=False, timeout=20.0, headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        self.world.stack.push_async_callback(client.aclose)
        return client

    async def newest_job(self) -> UUID:
        """The only job that waits."""
        async with asyncio.timeout(5):
            while not (queue := await self.worker.placement.queue(10)):
                await asyncio.sleep(0.01)
        return queue[-1].id

    async def serve_one(self, steps: int = 3) -> UUID:
        """Let the worker take the job that waits and run it to its end in some steps."""
        job_id = await self.newest_job()
        await self.worker.take(job_id)
        for _ in range(steps):
            await self.worker.release_tokens(job_id, 2)
            await asyncio.sleep(0.02)
        assert await self.worker.finish(job_id)
        return job_id

    async def served(self, call: Awaitable[Any], **options: Any) -> Any:
        """The call's answer, while the worker serves its job."""
        serving = asyncio.ensure_future(self.serve_one(**options))
        try:
            return await call
        finally:
            await serving


async def sse(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        if line:
            yield line


def data_of(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.01)
