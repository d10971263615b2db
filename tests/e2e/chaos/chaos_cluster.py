"""A real platform of real processes in a folder of its own, with a database that can be stopped under it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import psycopg
from prometheus_client.parser import text_string_to_metric_families
from psycopg.rows import dict_row

from octavo_cli.datadir import DataDir
from octavo_cli.supervisor import state
from octavo_common.db.embedded import EmbeddedPostgres

START_TIMEOUT_S = 240.0
# Longer than unread streams, last messages and gauges take.
SETTLE_S = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One registered process of the platform."""

    id: str
    role: str
    pid: int
    address: str
    metrics_address: str


class Cluster:
    """`octavo up` with its own Postgres beside it. Use it as a context manager: nothing is left behind."""

    # Shorter than in production: faults that outlast it shall not take minutes.
    DEFAULT_LEASE_S = 4.0

    def __init__(
        self,
        *,
        model: Path,
        workers: int = 2,
        gateways: int = 2,
        schedulers: int = 2,
        lease_s: float = DEFAULT_LEASE_S,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.lease_s = lease_s
        self._counts = {"worker": workers, "gateway": gateways, "scheduler": schedulers}
        self._model = model
        # Not under pytest's folder: the database's user may not enter that.
        self.folder = Path(tempfile.mkdtemp(prefix="octavo-chaos-"))
        self.folder.chmod(0o755)
        self.data_dir = DataDir(self.folder / "data")
        self.database = EmbeddedPostgres(self.folder / "database")
        self.dsn = ""
        self._extra = dict(environ or {})
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def __enter__(self) -> Self:
        try:
            self.dsn = self.database.start()
            counts = [word for role, count in self._counts.items() for word in (f"--{role}s", str(count))]
            wait = ["--detach", "--wait", "--no-console", "--timeout", str(START_TIMEOUT_S)]
            self.octavo("up", *wait, *counts, "--model", str(self._model))
            self.wait_ready()
        except BaseException:
            self.close(keep=True)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(keep=kind is not None)

    def close(self, *, keep: bool) -> None:
        """End everything; after a failure the logs stay where they are."""
        if self._connection is not None:
            self._connection.close()
        try:
            self.octavo("down")
        finally:
            self.database.stop()
        if keep:
            sys.stderr.write(f"logs: {self.data_dir.logs}\n")
        else:
            shutil.rmtree(self.folder)

    def octavo(self, *words: str) -> str:
        """Run the command; returns its stdout. Raises AssertionError with its words when it fails."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        environ |= {
            "OCTAVO_DATABASE_URL": self.dsn,
            "OCTAVO_LEASE_S": str(self.lease_s),
            "OCTAVO_GATEWAY_GRPC_PORT": "0",
            "OCTAVO_GATEWAY_HTTP_PORT": "0",
            **self._extra,
        }
        argv = [sys.executable, "-m", "octavo_cli", "--data-dir", str(self.data_dir.root), *words]
        run = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300, check=False)
        assert run.returncode == 0, f"{words} failed: {run.stdout[-500:]} {run.stderr[-3000:]}"
        return run.stdout

    def up_state(self) -> state.UpState:
        """What the supervisor says about itself."""
        up = state.read(self.data_dir.state_file)
        assert up is not None
        return up

    @property
    def addresses(self) -> list[str]:
        """The gateways' gRPC addresses."""
        return self.up_state().grpc_addresses

    def key(self, scope: str = "user") -> str:
        """A key of the data directory."""
        return self.data_dir.secret(f"{scope}_key")

    # --- the database

    @property
    def database_port(self) -> int:
        """Where Postgres listens."""
        port = urlsplit(self.dsn).port
        assert port is not None
        return port

    def query(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Ask the database, on a new connection where the old one is gone."""
        for attempt in (1, 2):
            if self._connection is None or self._connection.closed or self._connection.broken:
                self._connection = psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row, connect_timeout=5)
            try:
                return self._connection.execute(statement, values).fetchall()  # pyright: ignore[reportArgumentType]
            except psycopg.OperationalError:
                self._connection.close()
                if attempt == 2:
                    raise
        raise AssertionError

    def processes(self, role: str) -> list[Process]:
        """Registered processes whose heartbeat is fresh and whose pid lives."""
        rows = self.query(
            """select id::text, role, pid, address, coalesce(metrics_address, '') as metrics_address from processes
               where role = %s and heartbeat_at > now() - make_interval(secs => lease_s) and not draining
               order by started_at""",
            role,
        )
        return [Process(**row) for row in rows if psutil.pid_exists(row["pid"])]

    def placing_scheduler(self) -> int:
        """Pid of the scheduler that holds the lead: the process at the other end of the lock's connection."""
        rows = self.query(
            """select a.client_port from pg_locks l join pg_stat_activity a using (pid)
               where l.locktype = 'advisory' and l.classid = %s and l.objid = 1 and l.granted""",
            0x0C7B,
        )
        ports = {row["client_port"] for row in rows}
        for process in self.processes("scheduler"):
            if any(c.laddr.port in ports for c in psutil.Process(process.pid).net_connections() if c.laddr):
                return process.pid
        raise AssertionError("no scheduler places")

    # --- waiting

    def wait_ready(self, timeout_s: float = 90.0) -> None:
        """Wait until as many processes as were asked for live and renew, and all workers are given jobs.

        A scheduler sees a worker up to a second after its row; until then everything would go to the others.
        """

        def short() -> str:
            try:
                have = {role: len(self.processes(role)) for role in self._counts}
            except psycopg.OperationalError as error:
                return str(error)
            if have != self._counts:
                return f"{have} of {self._counts}"
            usable = max(self._usable_workers(scheduler) for scheduler in self.processes("scheduler"))
            return "" if usable == self._counts["worker"] else f"{usable:.0f} workers are given jobs"

        self.until(short, timeout_s)

    @staticmethod
    def _usable_workers(scheduler: Process) -> float:
        """Workers that the scheduler gives jobs, by its own figures; 0 for one that stands by or does not answer."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{scheduler.metrics_address}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return 0.0
        families = {family.name: family for family in text_string_to_metric_families(text)}
        workers = families.get("octavo_workers")
        samples = workers.samples if workers is not None else []
        return sum(sample.value for sample in samples if sample.labels.get("outcome") == "usable")

    def settle(self) -> None:
        """Let timers, last messages and the figures that processes tell about themselves come to rest."""
        time.sleep(SETTLE_S)

    @staticmethod
    def until(trouble: Callable[[], str], timeout_s: float) -> None:
        """Wait until there is no trouble any more; raises AssertionError with the last one."""
        end_s = time.monotonic() + timeout_s
        while last := trouble():
            assert time.monotonic() < end_s, last
            time.sleep(0.1)

    def log_lines(self, name: str) -> list[dict[str, Any]]:
        """The events of one service's log."""
        lines: list[dict[str, Any]] = []
        for line in (self.data_dir.logs / f"{name}.log").read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
        return lines


def kill(pid: int) -> None:
    """End a process of the platform as the kernel would: without a word."""
    os.kill(pid, signal.SIGKILL)
