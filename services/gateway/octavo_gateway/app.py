"""Builds the gateway and runs it. The only module that constructs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from octavo.v1 import builder_pb2_grpc, gateway_pb2_grpc, jobs_pb2_grpc
from octavo_common.clock import Clock, SystemClock
from octavo_common.db.engine import Database, connect
from octavo_common.ids import new_process_id
from octavo_common.jobs.model import NewProcess
from octavo_common.jobs.transitions import JOBS_CHANNEL, gateway_channel
from octavo_common.rpc.channel import internal_channel
from octavo_common.rpc.lifecycle import Lifecycle, advertised, serve
from octavo_common.rpc.server import RpcServer, make_server
from octavo_common.store import ArtifactStore, JobStore, KeyStore, Listener, ProcessStore, StreamStore
from octavo_common.telemetry import setup
from octavo_common.telemetry.looplag import measure_loop_lag
from octavo_common.telemetry.metrics_http import MetricsServer
from octavo_common.telemetry.rpc import TraceInterceptor, TraceObserver
from octavo_gateway.admission import Admission
from octavo_gateway.auth import AuthInterceptor, KeyRing
from octavo_gateway.builds.builders import BuilderPool
from octavo_gateway.builds.builds import Builds
from octavo_gateway.builds.service import BuildServicer
from octavo_gateway.channels import ChannelFactory, ChannelPool
from octavo_gateway.direct import Direct, NoDirect
from octavo_gateway.generations import Generations
from octavo_gateway.http import HttpServer
from octavo_gateway.jobs import Jobs
from octavo_gateway.lifecycle import Beat, Presence
from octavo_gateway.models import Catalogue
from octavo_gateway.observe import Observer
from octavo_gateway.openai.app import make_app
from octavo_gateway.prompts import Prompts
from octavo_gateway.requests import RequestLimits
from octavo_gateway.service import FleetServicer, GenerationServicer, JobServicer, ModelServicer
from octavo_gateway.serving import Service
from octavo_gateway.settings import GatewaySettings
from octavo_gateway.streams import StreamHub
from octavo_gateway.watching import Watches
from octavo_gateway.workers import WorkerPool

# Submissions, row reads, heartbeat and listings at once.
POOL_SIZE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of one gateway, for the rims and for tests."""

    id: UUID
    api: Generations
    hub: StreamHub
    jobs: Jobs
    builds: Builds
    catalogue: Catalogue
    prompts: Prompts
    workers: WorkerPool
    builders: ChannelPool
    processes: ProcessStore
    keys: KeyRing
    limits: RequestLimits
    observer: Observer
    direct: Direct | NoDirect


def build(
    settings: GatewaySettings, database: Database, telemetry: setup.Telemetry, *, process_id: UUID, clock: Clock
) -> Gateway:
    """Put a gateway together. Starts and opens nothing."""
    observer = Observer(tracer=telemetry.tracer, instruments=telemetry.instruments, clock=clock)
    calls = TraceObserver(telemetry.tracer, telemetry.instruments, clock)
    connect_to = _channels(settings, calls, clock)
    workers, builders = WorkerPool(connect_to), ChannelPool(connect_to)
    processes, streams, job_store = ProcessStore(database), StreamStore(database), JobStore(database)
    catalogue = Catalogue(processes, clock, remember_s=settings.remember_models_s)
    prompts = Prompts(ArtifactStore(database))
    keys = KeyRing(KeyStore(database), clock)
    jobs = _jobs(settings, job_store, streams, clock)
    direct = Direct(catalogue, workers) if settings.direct else NoDirect()
    hub = StreamHub(
        owner=process_id,
        store=streams,
        cancel=lambda job_id, tenant: job_store.cancel(job_id, tenant=tenant),
        count_chars=_char_counter(prompts, catalogue),
        is_exact=catalogue.agree,
        on_resumed=observer.resumed,
        workers=workers,
        clock=clock,
        lease_s=settings.lease_s,
    )
    api = Generations(
        keys=keys,
        admission=Admission(jobs=job_store, catalogue=catalogue, prompts=prompts, direct=direct, clock=clock),
        hub=hub,
        streams=streams,
        jobs=jobs,
        catalogue=catalogue,
        prompts=prompts,
        observer=observer,
    )
    return Gateway(
        id=process_id,
        api=api,
        hub=hub,
        jobs=jobs,
        builds=Builds(
            store=job_store,
            jobs=jobs,
            builders=BuilderPool(processes, builders),
            observer=observer,
            clock=clock,
        ),
        catalogue=catalogue,
        prompts=prompts,
        workers=workers,
        builders=builders,
        processes=processes,
        keys=keys,
        limits=RequestLimits(max_prompt_chars=settings.max_prompt_chars),
        observer=observer,
        direct=direct,
    )


def _channels(settings: GatewaySettings, calls: TraceObserver, clock: Clock) -> ChannelFactory:
    token = settings.require_internal_token()
    return lambda address: internal_channel(
        address, token, observer=calls, max_message_bytes=settings.max_message_bytes, clock=clock
    )


def _jobs(settings: GatewaySettings, store: JobStore, streams: StreamStore, clock: Clock) -> Jobs:
    dsn = settings.require_database_url()
    watches = Watches(read=streams.rows, listen=lambda: Listener(dsn, [JOBS_CHANNEL], clock), clock=clock)
    return Jobs(store, watches, clock)


def grpc_server(gateway: Gateway, settings: GatewaySettings, telemetry: setup.Telemetry, clock: Clock) -> RpcServer:
    """The public gRPC server of a gateway. Must be called inside its event loop."""
    trace = TraceInterceptor(telemetry.tracer, telemetry.instruments, clock)
    server = make_server(
        interceptors=[trace, AuthInterceptor(gateway.keys)], max_message_bytes=settings.max_message_bytes, clock=clock
    )
    generation = GenerationServicer(gateway.api, gateway.limits)
    gateway_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
    gateway_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(gateway.api, gateway.catalogue), server)
    gateway_pb2_grpc.add_FleetServiceServicer_to_server(FleetServicer(gateway.processes, gateway.workers), server)
    jobs_pb2_grpc.add_JobServiceServicer_to_server(JobServicer(gateway.jobs), server)
    builder_pb2_grpc.add_BuildServiceServicer_to_server(BuildServicer(gateway.builds), server)
    return server


async def run(settings: GatewaySettings) -> int:
    """Run a gateway until it is told to stop; returns the exit code."""
    process_id, clock = new_process_id(), SystemClock()
    telemetry = setup.init("octavo-gateway", str(process_id), settings)
    try:
        dsn = settings.require_database_url()
        database = connect(dsn, pool_size=POOL_SIZE, application_name="octavo-gateway")
        gateway = build(settings, database, telemetry, process_id=process_id, clock=clock)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(database.dispose)
            stack.push_async_callback(gateway.workers.close)
            stack.push_async_callback(gateway.builders.close)
            stack.push_async_callback(gateway.prompts.close)
            listener = await stack.enter_async_context(Listener(dsn, [gateway_channel(process_id)], clock))
            return await _serve(settings, gateway, telemetry, listener, clock)
    finally:
        await asyncio.to_thread(telemetry.shutdown)


async def _serve(
    settings: GatewaySettings, gateway: Gateway, telemetry: setup.Telemetry, listener: Listener, clock: Clock
) -> int:
    life = Lifecycle()
    server = grpc_server(gateway, settings, telemetry, clock)
    http = HttpServer(
        make_app(
            gateway.api,
            limits=gateway.limits,
            telemetry=telemetry,
            health=lambda: _health(listener, life)[0],
            max_body_bytes=settings.max_message_bytes,
        )
    )
    service = Service(
        hub=gateway.hub,
        jobs=gateway.jobs,
        http=http,
        metrics=MetricsServer(metrics=telemetry.prometheus_text, health=lambda: _health(listener, life)),
        presence=Presence(gateway.processes, _process(gateway, settings), _beat(gateway), clock),
        lifecycle=life,
        settings=settings,
        host=settings.advertise_host or advertised(settings.host),
        work={
            "streams": lambda: gateway.hub.run(listener),
            "loop lag": lambda: measure_loop_lag(telemetry.instruments, clock),
        },
    )
    return await serve(
        server,
        host=settings.host,
        port=settings.grpc_port,
        advertise_host=settings.advertise_host,
        on_ready=service.start,
        on_drain=service.drain,
        on_stop=service.stop,
        lifecycle=life,
        drain_s=settings.drain_s,
    )


def _process(gateway: Gateway, settings: GatewaySettings) -> NewProcess:
    return NewProcess(
        id=gateway.id, role="gateway", host=socket.gethostname(), pid=os.getpid(), lease_s=settings.lease_s
    )


def _beat(gateway: Gateway) -> Beat:
    warmed: set[str] = set()

    async def chore() -> None:
        workers = await gateway.catalogue.workers()
        gateway.workers.keep_only({worker.address for worker in workers if worker.alive})
        await gateway.direct.connect()
        for worker in workers:
            if worker.card is not None and worker.card.tokenizer_digest not in warmed:
                warmed.add(worker.card.tokenizer_digest)
                await gateway.prompts.warm(worker.card)

    return Beat(
        load=lambda: {"num_streams": gateway.hub.num_readers, "num_jobs": gateway.hub.num_followed}, chore=chore
    )


def _char_counter(prompts: Prompts, catalogue: Catalogue) -> Callable[..., Awaitable[int]]:
    async def count(job: Any, ids: Any) -> int:
        return await prompts.count_chars(job, ids, await catalogue.by_digest(job.model_digest))

    return count


def _health(listener: Listener, life: Lifecycle) -> tuple[bool, Mapping[str, Any]]:
    ok = listener.connected and not life.stopping.is_set()
    return ok, {"status": "ok" if ok else "not ready", "database": listener.connected}
