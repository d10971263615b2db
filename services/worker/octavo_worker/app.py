"""Builds the worker and runs it. The only module that constructs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import structlog

from octavo.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from octavo_common.clock import Clock, SystemClock
from octavo_common.db.engine import connect
from octavo_common.errors import OctavoError, Unavailable
from octavo_common.ids import new_process_id
from octavo_common.jobs.model import NewProcess
from octavo_common.jobs.spec import ModelCard
from octavo_common.jobs.transitions import worker_channel
from octavo_common.rpc.auth import TokenInterceptor
from octavo_common.rpc.lifecycle import Lifecycle, advertised, serve
from octavo_common.rpc.server import RpcServer, make_server
from octavo_common.starting import keep_objects
from octavo_common.store import ArtifactStore, Listener, ProcessStore, WorkStore
from octavo_common.telemetry import setup
from octavo_common.telemetry.looplag import measure_loop_lag
from octavo_common.telemetry.metrics_http import MetricsServer
from octavo_common.telemetry.rpc import TraceInterceptor
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.core import Engine
from octavo_worker.engine.types import Delta, StepStats
from octavo_worker.intake.grammars import Compiles, NoGrammars
from octavo_worker.intake.heartbeat import Heartbeat
from octavo_worker.intake.intake import Intake
from octavo_worker.intake.meters import Meters
from octavo_worker.intake.taking import take_jobs
from octavo_worker.joblog import Gate, LogBook
from octavo_worker.records import Records
from octavo_worker.runtime.loop import EngineLoop
from octavo_worker.service import WorkerService
from octavo_worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

# Claims, the heartbeat, and ends that come together.
POOL_SIZE = 6
BUNDLE_MEDIA_TYPE = "application/vnd.octavo.tokenizer+json"
DATABASE_PAUSE_S = 0.5
ENGINE_STOP_S = 5.0
TASK_END_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An engine and what the service announces of it."""

    engine: Engine
    card: ModelCard
    bundle: TokenizerBundle
    eos_ids: tuple[int, ...]
    grammars: Compiles = field(default_factory=NoGrammars)


Build = Callable[[WorkerSettings], Served]


def build_served(settings: WorkerSettings) -> Served:
    """Load the model that the settings name. Blocks for seconds."""
    # torch comes in with these: not before the settings were found good.
    from octavo_worker.kernels.team import why_single_threaded
    from octavo_worker.plugins import build_engine
    from octavo_worker.runtime.build import EngineConfig

    built = build_engine(
        EngineConfig(
            model_path=settings.require_model_path(),
            model_name=settings.model_name,
            device=settings.device,
            precision=settings.precision,
            kv_bytes=settings.kv_bytes or None,
            num_threads=settings.num_threads or None,
            attention_backend=settings.attention_backend,
            max_batch_tokens=settings.max_batch_tokens or None,
            max_sequences=settings.max_sequences,
            max_prompt_tokens_beside_decode=settings.max_prompt_tokens_beside_decode or None,
            records_decode=settings.records_decode,
            preemption=settings.preemption,
            swap_bytes=settings.swap_bytes,
            queue=settings.queue,
            engine_style=settings.engine_style,
        )
    )
    if reason := why_single_threaded():
        log.warning("kernels.single_threaded", reason=reason)
    keep_objects()
    return Served(
        engine=built.engine, card=built.card, bundle=built.bundle, eos_ids=built.eos_ids, grammars=built.grammars
    )


async def run(settings: WorkerSettings, build: Build = build_served, *, lifecycle: Lifecycle | None = None) -> int:
    """Run a worker until it is told to stop (by a signal or the lifecycle); returns the exit code."""
    process_id = new_process_id()
    telemetry = setup.init("octavo-worker", str(process_id), settings)
    try:
        settings.require_internal_token()
        settings.require_database_url()
        served = await asyncio.to_thread(build, settings)
        worker = _Worker(settings, served, process_id, telemetry, lifecycle or Lifecycle())
        return await worker.run()
    finally:
        await asyncio.to_thread(telemetry.shutdown)


class _Worker:
    """The parts of one process, put together."""

    def __init__(
        self,
        settings: WorkerSettings,
        served: Served,
        process_id: UUID,
        telemetry: setup.Telemetry,
        lifecycle: Lifecycle,
    ) -> None:
        self._settings = settings
        self._served = served
        self._id = process_id
        self._telemetry = telemetry
        self._life = lifecycle
        self._clock: Clock = SystemClock()
        dsn = settings.require_database_url()
        self._database = connect(dsn, pool_size=POOL_SIZE, application_name="octavo-worker")
        self._processes = ProcessStore(self._database)
        self._listener = Listener(dsn, [worker_channel(process_id)], self._clock)
        self._book = LogBook(self._clock)
        self._gate = Gate(self._clock, lease_s=settings.lease_s)
        self._records = Records()
        self._engine = EngineLoop(served.engine, clock=self._clock)
        self._intake = self._make_intake()
        self._metrics = MetricsServer(metrics=telemetry.prometheus_text, health=self._health)
        self._beat: Heartbeat | None = None
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    async def run(self) -> int:
        """Serve until the lifecycle ends."""
        settings = self._settings
        self._start_engine()
        async with self._listener:
            return await serve(
                self._make_server(),
                host=settings.host,
                port=settings.port,
                advertise_host=settings.advertise_host,
                on_ready=self._on_ready,
                on_drain=self._on_drain,
                on_stop=self._on_stop,
                lifecycle=self._life,
                drain_s=settings.drain_s,
                # Streams of jobs that were given back end by themselves; those of ended jobs may still be read.
                refuse_new=False,
            )

    def _make_server(self) -> RpcServer:
        telemetry, clock = self._telemetry, self._clock
        token = TokenInterceptor(self._settings.require_internal_token())
        trace = TraceInterceptor(telemetry.tracer, telemetry.instruments, clock)
        server = make_server(interceptors=[token, trace], clock=clock)
        service = WorkerService(
            book=self._book,
            gate=self._gate,
            records=self._records,
            look=self._engine.snapshot,
            arrival_s=self._settings.lease_s,
        )
        add_WorkerServiceServicer_to_server(service, server)
        return server

    async def _on_ready(self, address: str) -> None:
        settings = self._settings
        metrics_port = await self._metrics.start(settings.host, settings.metrics_port)
        process = self._process(address, f"{settings.advertise_host or advertised(settings.host)}:{metrics_port}")
        await self._announce(process)
        self._beat = beat = Heartbeat(
            store=self._processes,
            process=process,
            holder=self._intake,
            gate=self._gate,
            clock=self._clock,
            stuck=self._is_stuck,
            on_stuck=lambda: self._life.fail("the engine is stuck"),
            on_idle_beat=self._listener.wake,
        )
        # The fleet's figures are fresh when the worker falls idle.
        self._intake.on_idle = self._intake.on_cleared = beat.poke
        taking = take_jobs(
            self._intake,
            self._listener,
            beat,
            stopping=self._life.stopping,
            poll_s=settings.poll_s,
            clock=self._clock,
        )
        self._spawn("heartbeat", beat.run())
        self._spawn("intake", taking)
        self._spawn("loop lag", measure_loop_lag(self._telemetry.instruments, self._clock))

    async def _on_drain(self) -> None:
        self._listener.wake()
        await self._ended("intake")
        with suppress(OctavoError):
            await self._processes.set_draining(self._id)
        # After a failure of our own nothing is given back: the loss counts, and a job that kills workers is found.
        await self._intake.drain(self._settings.drain_s, give_back=self._life.exit_code == 0)

    async def _on_stop(self) -> None:
        if self._beat is not None:
            self._beat.stop()
            await self._ended("heartbeat")
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.to_thread(self._engine.stop, ENGINE_STOP_S)
        await self._metrics.stop()
        with suppress(OctavoError, TimeoutError):  # a courtesy; without it the heartbeat grows old
            async with asyncio.timeout(1.0):
                await self._processes.unregister(self._id)
        await self._database.dispose()

    def _make_intake(self) -> Intake:
        served = self._served
        # Only ids become text here: the template's helper process is the gateway's business.
        tokenizer = Tokenizer(replace(served.bundle, chat_template=None))
        return Intake(
            worker_id=self._id,
            store=WorkStore(self._database),
            engine=self._engine,
            tokenizer=tokenizer,
            eos_ids=served.eos_ids,
            card=served.card,
            grammars=served.grammars,
            max_jobs=self._settings.max_jobs,
            book=self._book,
            records=self._records,
            meters=Meters(self._telemetry.instruments, served.card),
            tracer=self._telemetry.tracer,
            clock=self._clock,
        )

    def _start_engine(self) -> None:
        events = asyncio.get_running_loop()

        def on_deltas(deltas: list[Delta], stats: StepStats, step_s: float) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                events.call_soon_threadsafe(self._intake.on_step, deltas, stats, step_s)

        def on_crash(error: BaseException) -> None:
            with suppress(RuntimeError):
                events.call_soon_threadsafe(self._life.fail, f"the engine crashed: {error!r}")

        self._engine.start(on_deltas, on_crash)

    def _process(self, address: str, metrics_address: str) -> NewProcess:
        return NewProcess(
            id=self._id,
            role="worker",
            address=address,
            metrics_address=metrics_address,
            host=socket.gethostname(),
            pid=os.getpid(),
            lease_s=self._settings.lease_s,
            card=self._served.card,
            capacity={"max_jobs": self._settings.max_jobs},
        )

    async def _announce(self, process: NewProcess) -> None:
        """Store the tokenizer, then register: who sees the card finds the bundle. Waits for a database that is away."""
        bundle, artifacts = self._served.bundle, ArtifactStore(self._database)
        while not self._life.stopping.is_set():
            try:
                await artifacts.put(bundle.digest, BUNDLE_MEDIA_TYPE, bundle.to_bytes())
                sent_s = self._clock.monotonic()
                await self._processes.register(process)
            except Unavailable as error:
                log.warning("process.not_registered", error=error.message)
                await self._clock.sleep(DATABASE_PAUSE_S)
            else:
                self._gate.renew(sent_s)
                return

    def _is_stuck(self) -> bool:
        idle_s = self._clock.monotonic() - self._engine.last_progress_s
        return self._engine.has_work and idle_s > self._settings.stuck_s

    def _health(self) -> tuple[bool, Mapping[str, Any]]:
        ok = self._gate.is_open and not self._life.stopping.is_set()
        latest = self._records.latest
        facts = {
            "database": self._listener.connected,
            "leases": self._gate.is_open,
            "step": latest.stats.step if latest else 0,
        }
        return ok, {"status": "ok" if ok else "not ready", **facts}

    def _spawn(self, name: str, work: Any) -> None:
        task = asyncio.create_task(work, name=name)
        self._life.watch(task, name)
        self._tasks[name] = task

    async def _ended(self, name: str) -> None:
        """Wait a moment for a task that was asked to end: a statement that is cut costs its connection."""
        if name in self._tasks:
            await asyncio.wait([self._tasks[name]], timeout=TASK_END_S)
