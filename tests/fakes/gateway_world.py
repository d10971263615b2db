"""A real gateway in the test's event loop, over a real database, with scripted workers behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
from pydantic import SecretStr
from sqlalchemy import text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fakes.scripted_worker import TOKEN, Script, ScriptedWorker, alphabet
from octavo.v1 import gateway_pb2, gateway_pb2_grpc, jobs_pb2_grpc
from octavo_common import ids, store
from octavo_common.clock import SystemClock
from octavo_common.db.engine import Database
from octavo_common.jobs.model import Job, NewProcess
from octavo_common.jobs.spec import ModelCard
from octavo_common.jobs.transitions import gateway_channel
from octavo_common.rpc.server import RpcServer
from octavo_common.telemetry import setup
from octavo_common.text.bundle import TokenizerBundle
from octavo_gateway import app
from octavo_gateway.settings import GatewaySettings

MODEL = "tiny"
DIGEST = "d" * 64


def byte_bundle() -> TokenizerBundle:
    """A tokenizer whose token ids are bytes, so that tests can read them."""
    # GPT-2's alphabet in the order of the bytes.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    chars = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    vocab = {chars[b]: b for b in range(256)} | {"<eos>": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    return TokenizerBundle(tokenizer_json=tokenizer.to_str(), chat_template=template, eos_token="<eos>", eos_ids=(256,))


@dataclass
class Heard:
    """What a client has of a stream."""

    job_id: str = ""
    created: bool = True
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finished: Any = None
    num_messages: int = 0

    def take(self, message: Any) -> None:
        self.num_messages += 1
        event = message.event
        kind = event.WhichOneof("event")
        if kind == "accepted":
            self.job_id, self.created = event.accepted.job_id, event.accepted.created
        elif kind == "tokens":
            # Never a repeated or missing token.
            assert event.tokens.first_token == len(self.token_ids)
            self.token_ids += event.tokens.token_ids
            self.text += event.tokens.text
        else:
            assert self.finished is None
            self.finished = event.finished


class Client:
    """One caller, with one key, of one gateway."""

    def __init__(self, port: int, key: str) -> None:
        self.port = port
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)])
        self.metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self.generation = gateway_pb2_grpc.GenerationServiceStub(self.channel)
        self.jobs = jobs_pb2_grpc.JobServiceStub(self.channel)
        self.models = gateway_pb2_grpc.ModelServiceStub(self.channel)
        self.fleet = gateway_pb2_grpc.FleetServiceStub(self.channel)

    def generate(self, *, timeout: float | None = 20.0, **fields: Any) -> Stream:
        request = gateway_pb2.GenerateRequest(generation=generation(**fields))
        return Stream(self.generation.Generate(request, metadata=self.metadata, timeout=timeout))

    def resume(self, job_id: str, token_ids: list[int], detach: bool = True) -> Stream:
        request = gateway_pb2.ResumeGenerationRequest(
            job_id=job_id,
            token_ids=token_ids,
            on_disconnect=gateway_pb2.ON_DISCONNECT_DETACH if detach else gateway_pb2.ON_DISCONNECT_CANCEL,
        )
        stream = Stream(self.generation.ResumeGeneration(request, metadata=self.metadata, timeout=20.0))
        stream.heard.token_ids = list(token_ids)
        return stream

    async def submit(self, **fields: Any) -> Any:
        request = gateway_pb2.SubmitGenerationRequest(generation=generation(**fields))
        return await self.generation.SubmitGeneration(request, metadata=self.metadata, timeout=10.0)


class Stream:
    """One call that streams, and what it has brought."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.heard = Heard()

    async def accepted(self) -> UUID:
        """Read the first event."""
        self.heard.take(await self.call.read())
        return UUID(self.heard.job_id)

    async def tokens(self, count: int) -> Heard:
        """Read until there are so many tokens."""
        async with asyncio.timeout(10):
            while len(self.heard.token_ids) < count:
                message = await self.call.read()
                assert message is not grpc.aio.EOF, (self.heard, await self.call.code(), await self.call.details())
                self.heard.take(message)
        return self.heard

    async def rest(self) -> Heard:
        """Read to the end. Raises the call's error."""
        async with asyncio.timeout(15):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.heard.take(message)
            assert await self.call.code() == grpc.StatusCode.OK, await self.call.details()
        return self.heard


def generation(**fields: Any) -> gateway_pb2.Generation:
    """A greedy request; `sampling` fields may be given flat."""
    sampling = fields.pop("sampling", {})
    message = gateway_pb2.Generation()
    message.sampling.temperature = 0.0
    message.sampling.max_tokens = 10
    for name, value in sampling.items():
        if isinstance(value, list):
            getattr(message.sampling, name).extend(value)
        else:
            setattr(message.sampling, name, value)
    if not {"prompt", "chat", "tokens"} & fields.keys():
        fields["prompt"] = "hello"
    for name, value in fields.items():
        if isinstance(value, (str, int, bool)):
            setattr(message, name, value)
        else:
            getattr(message, name).CopyFrom(value)
    return message


@dataclass
class RunningGateway:
    gateway: app.Gateway
    server: RpcServer
    port: int
    tasks: list[asyncio.Task[Any]]

    async def kill(self) -> None:
        """Like kill -9: nothing is told to anybody, and nothing is written."""
        hub = self.gateway.hub
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        hub._draining = True
        for siblings in list(hub._followed.values()):
            for followed in siblings:
                followed.task.cancel()
        hub._chores.add = lambda work: None  # type: ignore[method-assign]
        await self.server.stop(0)


class World:
    """The database, gateways, workers and clients of a test."""

    def __init__(self, dsn: str, database: Database, telemetry: setup.Telemetry, stack: AsyncExitStack) -> None:
        self.dsn = dsn
        self.database = database
        self.telemetry = telemetry
        self.stack = stack
        self.clock = SystemClock()
        self.jobs = store.JobStore(database)
        self.streams = store.StreamStore(database)
        self.keys = store.KeyStore(database)
        self.tenants = store.TenantStore(database)
        self.processes = store.ProcessStore(database)
        self.card = ModelCard(
            name=MODEL,
            digest=DIGEST,
            family="llama",
            numerics_id="float32/test",
            tokenizer_digest="",
            max_sequence_tokens=128,
            context_length=128,
            block_size=16,
            num_blocks=64,
            vocab_size=257,
        )
        self.key = ""
        self.admin_key = ""

    async def prepare(self) -> None:
        bundle = byte_bundle()
        await store.ArtifactStore(self.database).put(bundle.digest, "application/json", bundle.to_bytes())
        self.card = ModelCard.from_json({**self.card.to_json(), "tokenizer_digest": bundle.digest})
        self.key = await self.keys.create("acme", "user", "test")
        self.admin_key = await self.keys.create("ops", "admin", "test")

    async def gateway(self, **settings: Any) -> RunningGateway:
        """Start a gateway as app.py does, without its metrics and HTTP ports."""
        configured = GatewaySettings(
            data_dir=Path("/nonexistent"),
            database_url=self.dsn,
            internal_token=SecretStr(TOKEN),
            # Nothing is assigned unless the test says so.
            **{"direct": False, **settings},
        )
        process_id = ids.new_process_id()
        gateway = app.build(configured, self.database, self.telemetry, process_id=process_id, clock=self.clock)
        await self.processes.register(NewProcess(id=process_id, role="gateway", lease_s=configured.lease_s))
        listener = await self.stack.enter_async_context(
            store.Listener(self.dsn, [gateway_channel(process_id)], self.clock)
        )
        server = app.grpc_server(gateway, configured, self.telemetry, self.clock)
        port = await server.start("127.0.0.1", 0)
        await server.set_serving(True)
        task = asyncio.create_task(gateway.hub.run(listener))
        running = RunningGateway(gateway, server, port, [task])
        self.stack.push_async_callback(self._stop, running)
        return running

    async def _stop(self, running: RunningGateway) -> None:
        for task in running.tasks:
            task.cancel()
        await asyncio.gather(*running.tasks, return_exceptions=True)
        await running.gateway.hub.hand_over()
        await running.server.stop(0)
        await running.gateway.hub.close()
        await running.gateway.workers.close()
        await running.gateway.builders.close()
        await running.gateway.prompts.close()
        assert running.gateway.hub.num_readers == 0
        assert running.gateway.hub.num_followed == 0

    async def worker(self, script: Script = alphabet, **settings: Any) -> ScriptedWorker:
        worker = await ScriptedWorker(self.database, self.card, script, **settings).start()
        self.stack.push_async_callback(worker.kill)
        return worker

    def client(self, gateway: RunningGateway, key: str | None = None) -> Client:
        client = Client(gateway.port, self.key if key is None else key)
        self.stack.push_async_callback(client.channel.close)
        return client

    async def job(self, job_id: UUID | str) -> Job:
        return await self.jobs.get(UUID(str(job_id)), tenant=None)

    async def until(self, job_id: UUID | str, *states: str, timeout_s: float = 5.0) -> Job:
        """Wait until the job is in one of the states."""
        async with asyncio.timeout(timeout_s):
            while (job := await self.job(job_id)).state.value not in states:
                await asyncio.sleep(0.02)
        return job

    async def event_names(self, job_id: UUID | str) -> list[str]:
        return [event.event for event in await self.jobs.events(UUID(str(job_id)), tenant=None)]

    async def sql(self, statement: str, **values: Any) -> None:
        async with self.database.begin() as connection:
            await connection.execute(text(statement), values)


async def error_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, details and reason code of a call that must fail."""
    try:
        if hasattr(call, "read"):
            while await call.read() is not grpc.aio.EOF:
                pass
            raise AssertionError(f"no error, but {await call.code()}")
        await call
    except grpc.aio.AioRpcError as error:
        from octavo_common.rpc.errors import from_rpc_error

        return error.code(), error.details() or "", from_rpc_error(error).code
    raise AssertionError("no error")


def dumps(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


__all__ = ["AsyncIterator", "Client", "RunningGateway", "Stream", "World", "byte_bundle", "error_of", "generation"]
