"""Builds the service and runs it. The only module of the service that constructs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import structlog

from octavo.v1.builder_pb2_grpc import add_BuilderServiceServicer_to_server
from octavo_common.clock import SystemClock
from octavo_common.db.engine import connect
from octavo_common.errors import Unavailable
from octavo_common.ids import new_process_id
from octavo_common.jobs.model import NewProcess
from octavo_common.jobs.transitions import JOBS_CHANNEL, worker_channel
from octavo_common.rpc.auth import TokenInterceptor
from octavo_common.rpc.lifecycle import Lifecycle, advertised, serve
from octavo_common.rpc.server import RpcServer, make_server
from octavo_common.store import BuildStore, Listener, ProcessStore
from octavo_common.telemetry import setup
from octavo_common.telemetry.looplag import measure_loop_lag
from octavo_common.telemetry.metrics_http import MetricsServer
from octavo_common.telemetry.rpc import TraceInterceptor
from octavo_edge.app import TARGETS
from octavo_edge.public import all_without_paths
from octavo_edge.serving.building import Builds
from octavo_edge.serving.library import Library
from octavo_edge.serving.meters import Meters
from octavo_edge.serving.presence import Presence
from octavo_edge.serving.service import BuilderService
from octavo_edge.serving.settings import EdgeSettings
from octavo_edge.serving.sweeping import sweep

log = structlog.get_logger(__name__)

# The heartbeat, a take or an end, the sweep.
POOL_SIZE = 4
DRAIN_S = 10.0
RETRY_S = 1.0


async def run(settings: EdgeSettings) -> int:
    """Run an edge builder until it is told to stop; returns the exit code."""
    process_id = new_process_id()
    telemetry = setup.init("octavo-edge", str(process_id), settings)
    try:
        settings.require_internal_token()
        settings.require_database_url()
        library = await asyncio.to_thread(Library, settings.edge_dir)
        return await _Service(settings, library, process_id, telemetry).run()
    finally:
        await asyncio.to_thread(telemetry.shutdown)


class _Service:
    """The parts of one process, put together."""

    def __init__(self, settings: EdgeSettings, library: Library, process_id: UUID, telemetry: setup.Telemetry) -> None:
        self._settings, self._telemetry, self._library = settings, telemetry, library
        self._clock, self._life = SystemClock(), Lifecycle()
        dsn = settings.require_database_url()
        self._database = connect(dsn, pool_size=POOL_SIZE, application_name="octavo-edge")
        self._store = BuildStore(self._database)
        # Two: the loop waits for something to do, the heartbeat for what happens to what is done.
        self._jobs = Listener(dsn, [JOBS_CHANNEL], self._clock)
        self._own = Listener(dsn, [worker_channel(process_id)], self._clock)
        self._builds = Builds(
            process_id=process_id,
            store=self._store,
            listener=self._jobs,
            library=library,
            meters=Meters(telemetry.tracer, telemetry.instruments, self._clock, process_id=str(process_id)),
            settings=settings,
            clock=self._clock,
        )
        self._presence = Presence(
            ProcessStore(self._database), self._process(process_id), self._builds, self._own, self._clock
        )
        self._metrics = MetricsServer(metrics=telemetry.prometheus_text, health=self._health)
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def run(self) -> int:
        """Serve until the lifecycle ends."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            for listener in (self._jobs, self._own):
                await stack.enter_async_context(listener)
            return await serve(
                self._server(),
                host=settings.host,
                port=settings.port,
                advertise_host=settings.advertise_host,
                on_ready=self._on_ready,
                on_drain=self._on_drain,
                on_stop=self._on_stop,
                lifecycle=self._life,
                drain_s=DRAIN_S,
            )

    def _process(self, process_id: UUID) -> NewProcess:
        return NewProcess(
            id=process_id,
            role="edge_builder",
            host=socket.gethostname(),
            pid=os.getpid(),
            lease_s=self._settings.lease_s,
            capacity={"max_jobs": 1, "store": self._library.id, "targets": _all_lack("not looked at yet")},
        )

    def _server(self) -> RpcServer:
        token = TokenInterceptor(self._settings.require_internal_token())
        trace = TraceInterceptor(self._telemetry.tracer, self._telemetry.instruments, self._clock)
        server = make_server(interceptors=[token, trace], clock=self._clock)
        service = BuilderService(self._builds, self._library, self._settings.places)
        add_BuilderServiceServicer_to_server(service, server)
        return server

    async def _on_ready(self, address: str) -> None:
        settings = self._settings
        port = await self._metrics.start(settings.host, settings.metrics_port)
        await self._presence.announce(address, f"{settings.advertise_host or advertised(settings.host)}:{port}")
        swept = sweep(self._library, self._store, self._clock, every_s=settings.sweep_every_s)
        self._spawn("heartbeat", self._presence.keep())
        self._spawn("builds", self._builds.run())
        self._spawn("sweep", swept)
        self._spawn("loop lag", measure_loop_lag(self._telemetry.instruments, self._clock))
        # Looking at tool-chains takes seconds, which nobody has to wait for; and it may end by itself.
        self._tasks["targets"] = asyncio.create_task(self._look_at_targets(), name="targets")

    async def _look_at_targets(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "octavo_edge", "targets", "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env=self._settings.child_environment(),
        )
        try:
            told, _ = await process.communicate()
            if process.returncode != 0:
                raise ValueError(f"exit code {process.returncode}")
            found = json.loads(told)
        except ValueError as error:
            log.warning("targets.not_known", error=str(error))
            found = _all_lack(f"the tool-chain could not be looked at: {error}")
        finally:
            if process.returncode is None:
                process.kill()
        log.info("targets.looked_at", missing={name: missing for name, missing in found.items() if missing})
        # All callers may list them.
        await self._tell_of(all_without_paths(found))

    async def _tell_of(self, targets: Mapping[str, list[str]]) -> None:
        """Write what each target lacks, however long the database is away."""
        while True:
            try:
                return await self._presence.able(targets=targets)
            except Unavailable as error:
                log.warning("targets.not_told", error=error.message)
                await self._clock.sleep(RETRY_S)

    def _spawn(self, name: str, work: Any) -> None:
        task = asyncio.create_task(work, name=name)
        self._life.watch(task, name)
        self._tasks[name] = task

    async def _on_drain(self) -> None:
        await self._presence.drain()
        self._builds.drain()
        await asyncio.gather(self._tasks["builds"], return_exceptions=True)

    async def _on_stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._metrics.stop()
        await self._presence.leave()
        await self._database.dispose()

    def _health(self) -> tuple[bool, Mapping[str, Any]]:
        ok = self._jobs.connected and not self._life.stopping.is_set()
        building = self._builds.running is not None
        return ok, {"status": "ok" if ok else "not ready", "building": building, "database": self._jobs.connected}


def _all_lack(what: str) -> dict[str, list[str]]:
    return {name: [what] for name in TARGETS}
