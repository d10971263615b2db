"""Builds the scheduler and runs it. The only module that constructs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import structlog

from octavo.v1.scheduler_pb2_grpc import add_SchedulerServiceServicer_to_server
from octavo_common.clock import SystemClock
from octavo_common.db.engine import connect
from octavo_common.errors import Unavailable
from octavo_common.ids import new_process_id
from octavo_common.jobs.model import NewProcess
from octavo_common.jobs.transitions import JOBS_CHANNEL
from octavo_common.rpc.auth import TokenInterceptor
from octavo_common.rpc.lifecycle import Lifecycle, advertised, serve
from octavo_common.rpc.server import make_server
from octavo_common.store import Listener, PlacementStore, ProcessStore
from octavo_common.telemetry import names, setup
from octavo_common.telemetry.looplag import measure_loop_lag
from octavo_common.telemetry.metrics_http import MetricsServer
from octavo_common.telemetry.rpc import TraceInterceptor
from octavo_scheduler.fleet import Fleet
from octavo_scheduler.loop import Figures, PlacementLoop
from octavo_scheduler.presence import keep_present
from octavo_scheduler.service import SchedulerService
from octavo_scheduler.settings import SchedulerSettings
from octavo_scheduler.spans import NoSpans, PlacementSpans
from octavo_scheduler.watch import WorkerWatch

log = structlog.get_logger(__name__)

# The loop's two reads at once, an assignment, the heartbeat, and the lead's own.
POOL_SIZE = 5
DRAIN_S = 2.0


async def run(settings: SchedulerSettings) -> int:
    """Run a scheduler until it is told to stop; returns the exit code."""
    process_id = new_process_id()
    telemetry = setup.init("octavo-scheduler", str(process_id), settings)
    try:
        return await _run(settings, process_id, telemetry)
    finally:
        await asyncio.to_thread(telemetry.shutdown)


async def _run(settings: SchedulerSettings, process_id: UUID, telemetry: setup.Telemetry) -> int:
    clock, life = SystemClock(), Lifecycle()
    token, dsn = settings.require_internal_token(), settings.require_database_url()
    database = connect(dsn, pool_size=POOL_SIZE, application_name="octavo-scheduler")
    processes = ProcessStore(database)
    listener = Listener(dsn, [JOBS_CHANNEL], clock)
    fleet = Fleet(clock)
    watch = WorkerWatch(fleet, token=token, clock=clock, on_change=listener.wake)
    spans = PlacementSpans(telemetry.tracer) if telemetry.exports_traces else NoSpans()
    loop = PlacementLoop(
        store=PlacementStore(database),
        listener=listener,
        fleet=fleet,
        watch=watch,
        instruments=telemetry.instruments,
        spans=spans,
        settings=settings,
        clock=clock,
    )
    _observe(telemetry, loop.figures)
    trace = TraceInterceptor(telemetry.tracer, telemetry.instruments, clock)
    server = make_server(interceptors=[TokenInterceptor(token), trace], clock=clock)
    add_SchedulerServiceServicer_to_server(SchedulerService(process_id, loop.figures), server)
    metrics = MetricsServer(metrics=telemetry.prometheus_text, health=lambda: _health(loop.figures, listener, life))
    tasks: list[asyncio.Task[Any]] = []

    async def on_ready(address: str) -> None:
        metrics_port = await metrics.start(settings.host, settings.metrics_port)
        process = NewProcess(
            id=process_id,
            role="scheduler",
            address=address,
            metrics_address=f"{settings.advertise_host or advertised(settings.host)}:{metrics_port}",
            host=socket.gethostname(),
            pid=os.getpid(),
            lease_s=settings.lease_s,
        )
        await processes.announce(process, clock)
        for name, work in (
            ("placement", loop.run()),
            ("heartbeat", keep_present(processes, process, clock)),
            ("loop lag", measure_loop_lag(telemetry.instruments, clock)),
        ):
            task = asyncio.create_task(work, name=name)
            life.watch(task, name)
            tasks.append(task)

    async def on_drain() -> None:
        # The lead goes to a standby at once.
        await _end(tasks)

    async def on_stop() -> None:
        await _end(tasks)
        await watch.close()
        await metrics.stop()
        try:
            async with asyncio.timeout(1.0):
                await processes.unregister(process_id)
        except (Unavailable, TimeoutError):
            log.debug("process.row_left_behind")  # its heartbeat grows old by itself
        await database.dispose()

    async with listener:
        return await serve(
            server,
            host=settings.host,
            port=settings.port,
            advertise_host=settings.advertise_host,
            on_ready=on_ready,
            on_drain=on_drain,
            on_stop=on_stop,
            lifecycle=life,
            drain_s=DRAIN_S,
        )


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


def _health(figures: Figures, listener: Listener, life: Lifecycle) -> tuple[bool, Mapping[str, Any]]:
    ok = listener.connected and not life.stopping.is_set()
    facts = {"placing": figures.placing, "queued": figures.num_queued, "database": listener.connected}
    return ok, {"status": "ok" if ok else "not ready", **facts}


def _observe(telemetry: setup.Telemetry, figures: Figures) -> None:
    observe = telemetry.instruments.observe
    observe(names.PLACING, lambda: [(int(figures.placing), {})])
    observe(names.NUM_JOBS_QUEUED, lambda: [(figures.num_queued, {})] if figures.placing else [])
    observe(names.NUM_WORKERS, lambda: [(n, {names.OUTCOME: what}) for what, n in figures.num_workers.items()])
