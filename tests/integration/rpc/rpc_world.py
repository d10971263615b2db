"""A server whose handlers do what a test says. Methods of the real protos, so that real messages travel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc, worker_pb2, worker_pb2_grpc
from octavo_common.errors import OctavoError
from octavo_common.rpc.channel import internal_channel
from octavo_common.rpc.errors import from_rpc_error
from octavo_common.rpc.server import RpcServer, make_server

TOKEN = "secret"
STATUS = "/octavo.v1.SchedulerService/GetStatus"
STREAM = "/octavo.v1.WorkerService/Stream"


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Unary calls. `behaviour` is awaited with the context."""

    def __init__(self) -> None:
        self.behaviour: Any = None
        self.contexts: list[Any] = []

    async def GetStatus(self, request, context):
        self.contexts.append(context)
        if self.behaviour:
            await self.behaviour(context)
        return scheduler_pb2.GetStatusResponse(id="ok")


class Worker(worker_pb2_grpc.WorkerServiceServicer):
    """Streams: one message, then `behaviour`, then endless ones while `endless`. In the generator style."""

    def __init__(self) -> None:
        self.behaviour: Any = None
        self.endless = False
        self.num_active = 0
        self.num_sent = 0
        self.ended = asyncio.Event()

    async def Stream(self, request, context):
        self.num_active += 1
        try:
            yield worker_pb2.StreamResponse(first_token=request.first_token)
            if self.behaviour:
                await self.behaviour(context)
            while self.endless:
                self.num_sent += 1
                yield worker_pb2.StreamResponse(text="x")
                await asyncio.sleep(0.001)
        finally:
            self.num_active -= 1
            self.ended.set()


class WritingWorker(Worker):
    """The same in the coroutine style."""

    async def Stream(self, request, context):
        await context.write(worker_pb2.StreamResponse(first_token=request.first_token))
        if self.behaviour:
            await self.behaviour(context)


class Served:
    def __init__(self, server: RpcServer, port: int, scheduler: Scheduler, worker: Worker) -> None:
        self.server = server
        self.address = f"127.0.0.1:{port}"
        self.scheduler = scheduler
        self.worker = worker

    def both_do(self, behaviour: Any) -> None:
        self.scheduler.behaviour = self.worker.behaviour = behaviour


@asynccontextmanager
async def serving(*, worker: Worker | None = None, **options: Any) -> AsyncIterator[Served]:
    server = make_server(**options)
    made = Served(server, 0, Scheduler(), worker or Worker())
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(made.scheduler, server)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(made.worker, server)
    made.address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    await server.set_serving(True)
    try:
        yield made
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def channel_to(address: str, token: str = TOKEN, **options: Any) -> AsyncIterator[grpc.aio.Channel]:
    async with internal_channel(address, token, **options) as channel:
        yield channel


def get_status(channel: grpc.aio.Channel, **options: Any):
    return scheduler_pb2_grpc.SchedulerServiceStub(channel).GetStatus(scheduler_pb2.GetStatusRequest(), **options)


def stream(channel: grpc.aio.Channel, **options: Any):
    return worker_pb2_grpc.WorkerServiceStub(channel).Stream(worker_pb2.StreamRequest(first_token=7), **options)


async def read_all(call: Any) -> list[Any]:
    return [message async for message in call]


async def failure(awaitable: Any) -> OctavoError:
    """The error that a call ends with."""
    try:
        answer = await awaitable
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    raise AssertionError(f"it answered {answer!r}")
