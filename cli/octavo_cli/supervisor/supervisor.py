"""The supervisor: prepares, starts, watches, reports and stops the platform of one data directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from octavo_cli.datadir import DataDir
from octavo_cli.settings import CliSettings, known_shaping, shaping
from octavo_cli.supervisor import health, logs, ports, processes, state
from octavo_cli.supervisor.keeper import Keeper
from octavo_cli.supervisor.launch import StartFailed
from octavo_cli.supervisor.plan import MARK, ServiceSpec, Site, UpOptions, plan
from octavo_cli.supervisor.prepare import Prepared, prepare
from octavo_cli.supervisor.restarts import RestartPolicy
from octavo_cli.supervisor.state import UpState
from octavo_common.clock import Clock, until_beat
from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.db.engine import Database, connect
from octavo_common.errors import OctavoError

log = structlog.get_logger(__name__)

# Looks are frequent while something is not ready.
_LOOK_SOON_S, _LOOK_LATER_S = 0.5, 5.0
# Services that were ready are asked at every sixth look: a question wakes the one who is asked. Ends are told at once.
_ASK_S = 29.0
# Each question in a look has a bound of its own; this one is for what nobody thought of.
_LOOK_TIMEOUT_S = 30.0
# Longer than the gateways drain.
STOP_GRACE_S = 20.0


class Supervisor:
    """Runs one platform. The caller holds the data directory's lock."""

    def __init__(
        self,
        *,
        data_dir: DataDir,
        settings: CliSettings,
        environ: Mapping[str, str],
        options: UpOptions,
        clock: Clock,
        on_change: Callable[[UpState], None] = lambda state: None,
    ) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._environ = {name: value for name, value in environ.items() if name != MARK}
        self._options = options
        self._clock = clock
        self._on_change = on_change
        self._keepers: list[Keeper] = []
        self._stop = asyncio.Event()
        # A process ended or was started, or the stop was said.
        self._news = asyncio.Event()
        self._asked_s = 0.0
        # The last trouble of each kind that is not worth an end, to say it once.
        self._said: dict[str, str] = {}
        self._is_written = False
        variables = {**shaping(environ), **known_shaping(settings)}
        self._state = UpState(
            pid=os.getpid(),
            started=processes.start_ticks(os.getpid()),
            phase="preparing",
            options={**options.to_json(), "variables": variables},
            log=str(data_dir.up_log) if logs.takes_stderr(data_dir.up_log) else "",
        )

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._say_stop)
        self._change(detail="looking for free ports")
        prepared: Prepared | None = None
        database: Database | None = None
        code = 0
        try:
            # What a killed predecessor left behind would answer in the place of the new processes.
            processes.end_marked(self._data_dir.root, 10.0, lambda line: log.warning("leftover.ended", process=line))
            gateway_ports, console_port = self._choose_ports()
            prepared = await self._prepare(loop)
            if prepared is None:
                return 0
            specs = plan(self._options, self._site(prepared, gateway_ports, console_port))
            self._keepers = [self._keeper(spec) for spec in specs]
            self._change(phase="starting", detail="", fraction=None, embedded_database=prepared.embedded is not None)
            database = connect(prepared.database_url, pool_size=1, application_name="octavo up")
            await self._watch(prepared, database)
        except Exception as error:
            # Whoever waits for the platform reads it there.
            told = isinstance(error, OctavoError)
            message = error.message if told else f"{type(error).__name__}: {error}"
            if not told:
                log.exception("up.failed")
            self._change(phase="failed", error=message, hint=error.hint if told else "")
            code = 1
        finally:
            if database is not None:
                await database.dispose()
            if code == 0:
                self._change(phase="stopping", detail="")
            if not self._settings.database_url:
                await asyncio.to_thread(EmbeddedPostgres(self._data_dir.root).stop)
            if code == 0:
                self._data_dir.state_file.unlink(missing_ok=True)
        return code

    async def _prepare(self, loop: asyncio.AbstractEventLoop) -> Prepared | None:
        """Prepare in a thread of its own; None when the stop is said meanwhile (a download cannot be interrupted)."""
        done: asyncio.Future[Prepared] = loop.create_future()

        def report(detail: str, fraction: float | None) -> None:
            loop.call_soon_threadsafe(lambda: self._change(detail=detail, fraction=fraction))

        def work() -> None:
            try:
                result = prepare(self._data_dir, self._settings, self._options.model, report)
            except BaseException as error:
                outcome, value = done.set_exception, error
            else:
                outcome, value = done.set_result, result
            with contextlib.suppress(RuntimeError):  # the loop may be gone
                loop.call_soon_threadsafe(lambda: done.cancelled() or outcome(value))  # pyright: ignore[reportArgumentType]

        threading.Thread(target=work, daemon=True, name="prepare").start()
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({done, stop}, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            stop.cancel()
            return done.result()
        done.cancel()
        processes.kill_pip()
        return None

    async def _watch(self, prepared: Prepared, database: Database) -> None:
        """Keep all processes alive until the stop; then end them."""
        tasks = [asyncio.create_task(keeper.run()) for keeper in self._keepers]
        try:
            while not self._stop.is_set():
                self._news.clear()
                self._check_failures()
                trouble = await self._look(prepared, database)
                self._rotate_logs()
                self._change(phase="ready" if self._are_ready and not trouble else "starting", trouble=trouble)
                await self._pause(until_beat(self._clock, _LOOK_LATER_S if self._are_ready else _LOOK_SOON_S))
        finally:
            self._change(phase="stopping", trouble="")
            await self._end(tasks)

    async def _look(self, prepared: Prepared, database: Database) -> str:
        """Look at database and services if it is time; returns why that cannot be done, or nothing."""
        try:
            await self._keep_database(prepared)
            if not self._are_ready or self._clock.monotonic() - self._asked_s >= _ASK_S:
                async with asyncio.timeout(_LOOK_TIMEOUT_S):
                    await health.look(self._keepers, database)
                self._asked_s = self._clock.monotonic()
        except Exception as error:
            # Whatever a look stumbles over, the services go on; ending them all would be worse.
            if self._said.get("look.failed") != repr(error):
                self._said["look.failed"] = repr(error)
                log.exception("look.failed")
            return f"cannot look at the services, see {self._state.log or 'what `octavo up` prints'}"
        self._said.pop("look.failed", None)
        return ""

    def _rotate_logs(self) -> None:
        try:
            for keeper in self._keepers:
                logs.rotate(self._log_file(keeper.spec))
        except OSError as error:
            self._warn_once("log.not_rotated", str(error))

    def _warn_once(self, event: str, error: str) -> None:
        if self._said.get(event) != error:
            self._said[event] = error
            log.warning(event, error=error)

    @property
    def _are_ready(self) -> bool:
        return all(keeper.is_ready for keeper in self._keepers)

    def _check_failures(self) -> None:
        """Raises StartFailed when a service can never start: the platform would wait for it for ever."""
        for keeper in self._keepers:
            if keeper.failure:
                raise StartFailed(
                    f"{keeper.spec.name} cannot start: {keeper.failure}", hint=f"see {self._log_file(keeper.spec)}"
                )

    async def _keep_database(self, prepared: Prepared) -> None:
        if prepared.embedded is None or prepared.embedded.is_running:
            return
        log.warning("postgres.lost")
        self._change(detail="starting the database again")
        try:
            url = await asyncio.to_thread(prepared.embedded.start)
        except OctavoError as error:
            self._change(detail=f"the database does not start: {error.message}")
            return
        self._change(detail="")
        if url != self._keepers[0].spec.env["OCTAVO_DATABASE_URL"]:
            # Its port was taken meanwhile: the services must learn the new one.
            for keeper in self._keepers:
                if "OCTAVO_DATABASE_URL" in keeper.spec.env:
                    env = {**keeper.spec.env, "OCTAVO_DATABASE_URL": url}
                    keeper.spec = replace(keeper.spec, env=env)
                    keeper.terminate()

    async def _pause(self, seconds: float) -> None:
        """Wait until the next look: sooner when a process ends or the stop is said."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _say_stop(self) -> None:
        self._stop.set()
        self._news.set()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for keeper in self._keepers:
            keeper.stop()
        _, late = await asyncio.wait(tasks, timeout=STOP_GRACE_S)
        for keeper in self._keepers:
            keeper.kill()
        if late:
            log.warning("service.killed", names=[k.spec.name for k in self._keepers if k.pid is not None])
            await asyncio.wait(late, timeout=5)

    def _choose_ports(self) -> tuple[tuple[tuple[int, int], ...], int]:
        settings, host = self._settings, self._settings.host
        taken: set[int] = set()
        count = self._options.gateways
        grpc = ports.choose(
            host, settings.grpc_port, count, variable="OCTAVO_GATEWAY_GRPC_PORT", what="gateway (gRPC)", taken=taken
        )
        http = ports.choose(
            host, settings.http_port, count, variable="OCTAVO_GATEWAY_HTTP_PORT", what="gateway (HTTP)", taken=taken
        )
        console = 0
        if self._options.console:
            (console,) = ports.choose(
                "127.0.0.1", settings.console_port, 1, variable="OCTAVO_CONSOLE_PORT", what="console", taken=taken
            )
        return tuple(zip(grpc, http, strict=True)), console

    def _site(self, prepared: Prepared, gateway_ports: tuple[tuple[int, int], ...], console_port: int) -> Site:
        return Site(
            python=sys.executable,
            data_dir=self._data_dir.root,
            host=self._settings.host,
            database_url=prepared.database_url,
            num_cores=num_cores(),
            gateway_ports=gateway_ports,
            console_port=console_port,
            model_path=str(prepared.model_path),
            model_name=prepared.model_name,
            worker_threads=self._settings.worker_threads,
        )

    def _keeper(self, spec: ServiceSpec) -> Keeper:
        return Keeper(
            spec,
            environ=self._environ,
            log_file=self._log_file(spec),
            clock=self._clock,
            policy=RestartPolicy(),
            on_news=self._news.set,
            has_peer=lambda: any(
                other.is_ready for other in self._keepers if other.spec != spec and other.spec.role == spec.role
            ),
        )

    def _log_file(self, spec: ServiceSpec) -> Path:
        return self._data_dir.logs / f"{spec.name}.log"

    def _change(self, **changes: Any) -> None:
        services = tuple(keeper.state() for keeper in self._keepers)
        changed = replace(self._state, services=services, **changes)
        if changed.trouble:
            changed = replace(changed, services=tuple(state.unseen(service) for service in services))
        if changed != self._state or not self._is_written or not self._data_dir.state_file.exists():
            self._state, self._is_written = changed, False
            try:
                state.write(self._data_dir.state_file, changed)
                self._is_written = True
            except OSError as error:
                # A full disk, say. The services may still do their work.
                self._warn_once("state.not_written", str(error))
            self._on_change(changed)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
