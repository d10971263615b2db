"""A Postgres server of our own in the data directory: made, started, adopted, stopped. Knows no schema.

Layout of the data directory: pg/ is the cluster, pg.json (0600) its address, pg.lock serialises starts and stops,
logs/postgres.log its words. The server outlives the process that started it; the next start adopts it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import structlog

from octavo_common.clock import Clock, SystemClock
from octavo_common.db.pgbinaries import Runner, find_runner
from octavo_common.db.pgfiles import DATABASE, HOST, USER, ServerFiles, ServerState, is_alive
from octavo_common.errors import Unavailable
from octavo_common.space import no_space, require, says_full

log = structlog.get_logger(__name__)

# Crash recovery of a busy cluster takes a while.
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_PAUSE_S = 0.02
# A new cluster with its first log segments, and the binaries where root must copy them.
_NEW_BYTES = 100 * 10**6
_TAIL_CHARS = 500
_WHAT = "the database"
_OPTIONS = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # What waits for the disk does not wait for this. Heartbeats, assignments and claims of direct jobs do not wait: a
    # crash may lose the last seconds of them, and owners do them again.
    "wal_writer_delay": "2s",
    # TCP only: the path of a socket file may be longer than the system allows.
    "unix_socket_directories": "",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}


class EmbeddedPostgres:
    """The server of one data directory. Several processes may hold such an object; the file lock keeps order."""

    def __init__(self, data_dir: Path, *, bin_dir: Path | None = None, clock: Clock | None = None) -> None:
        self._files = ServerFiles(Path(data_dir).resolve())
        self._bin_dir = bin_dir
        self._clock = clock or SystemClock()

    @property
    def data_dir(self) -> Path:
        """The data directory, as an absolute path."""
        return self._files.data_dir

    @property
    def needed_bytes(self) -> int:
        """Room that the first start takes; 0 when there is a cluster."""
        return 0 if self._files.has_cluster else _NEW_BYTES

    def start(self) -> str:
        """Start the server, or adopt the one that runs, and return its DSN. Raises Unavailable or NoSpace."""
        self._files.data_dir.mkdir(parents=True, exist_ok=True)
        with self._files.locked():
            state = self._files.read_state()
            adopted = None if state is None else self._adopt(state)
            if adopted is not None:
                return adopted.dsn()
            require(self._files.data_dir, self.needed_bytes, _WHAT)
            runner = find_runner(self._files.data_dir, bin_dir=self._bin_dir)
            if state is None or not self._files.has_cluster:
                state = self._create(runner)
            self._check_version(runner)
            runner.give(self._files.pgdata)
            state = self._launch(runner, state)
            self._make_database(state)
            log.info("postgres.started", port=state.port, pid=state.pid)
            return state.dsn()

    def stop(self) -> None:
        """Stop the server in good order (open transactions are rolled back), whoever started it."""
        with self._files.locked():
            pid = self._files.running_pid()
            if pid is None:
                return
            for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
                if self._await_end(pid):
                    break
            state = self._files.read_state()
            if state is not None:
                self._files.write_state(replace(state, pid=None))
            log.info("postgres.stopped", pid=pid)

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives; it may still be starting."""
        return self._files.running_pid() is not None

    @property
    def dsn(self) -> str | None:
        """Where the server is or was last; None before the first start."""
        state = self._files.read_state()
        return None if state is None else state.dsn()

    # --- the cluster

    def _create(self, runner: Runner) -> ServerState:
        """Make the cluster. Under another name until it is complete: an interrupted one is made anew."""
        if self._files.pgdata.exists() and any(self._files.pgdata.iterdir()):
            raise Unavailable(
                f"{self._files.pgdata} holds a cluster whose address file {self._files.state_file} is missing",
                hint="restore the file, or move the folder away to begin anew",
            )
        fresh = self._files.data_dir / "pg.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        runner.give(fresh)
        password = secrets.token_urlsafe(24)
        password_file = self._files.data_dir / "pg.password"
        try:
            password_file.touch(mode=0o600)
            password_file.write_text(password)
            runner.give(password_file)
            self._initdb(runner, fresh, password_file)
        finally:
            password_file.unlink(missing_ok=True)
        state = ServerState(port=_free_port(), password=password)
        self._files.write_state(state)
        if self._files.pgdata.exists():
            self._files.pgdata.rmdir()
        fresh.rename(self._files.pgdata)
        return state

    def _initdb(self, runner: Runner, pgdata: Path, password_file: Path) -> None:
        options = ("-A", "scram-sha-256", "--pwfile", str(password_file), "-E", "UTF8", "--locale=C", "--no-sync")
        process = runner.popen(
            "initdb", "-D", str(pgdata), "-U", USER, *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = process.communicate(timeout=_START_TIMEOUT_S)
        if process.returncode:
            words = output.decode(errors="replace")
            if says_full(words):
                raise no_space(self._files.data_dir, self.needed_bytes, _WHAT)
            raise Unavailable(f"initdb failed: {_last_lines(words)}")

    def _check_version(self, runner: Runner) -> None:
        has, runs = int((self._files.pgdata / "PG_VERSION").read_text()), runner.version()
        if has != runs:
            raise Unavailable(
                f"the cluster in {self._files.pgdata} is of PostgreSQL {has}, and the binaries are of {runs}",
                hint=f"dump it with binaries of {has} and restore it, or set OCTAVO_DATABASE_URL",
            )

    # --- the process

    def _adopt(self, state: ServerState) -> ServerState | None:
        """Take the server that runs; None when there is none, or it is about to end."""
        pid = self._files.running_pid()
        if pid is None:
            return None
        adopted = replace(state, port=self._files.running_port() or state.port, pid=pid)
        try:
            self._await_ready(adopted)
        except Unavailable:
            if is_alive(pid):
                raise
            return None
        self._files.write_state(adopted)
        return adopted

    def _launch(self, runner: Runner, state: ServerState) -> ServerState:
        """Start the server on its old port if that is free, else on another."""
        deadline = self._clock.monotonic() + _START_TIMEOUT_S
        self._files.forget_stale_pid()
        port = state.port if _is_free(state.port) else _free_port()
        while True:
            mark = self._files.log_size()
            with self._files.open_log() as stderr:
                options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
                process = runner.popen(
                    "postgres", "-D", str(self._files.pgdata), "-h", HOST, "-p", str(port), *options, stderr=stderr
                )
            # Somebody must wait for a child's end, or it stays a zombie; the server may outlive this object.
            threading.Thread(target=process.wait, name="octavo-postgres", daemon=True).start()
            started = replace(state, port=port, pid=process.pid)
            try:
                self._await_ready(started)
            except Unavailable as error:
                words = self._files.log_since(mark)
                if is_alive(process.pid) or self._clock.monotonic() > deadline:
                    raise
                if "in use" in words and "shared memory" not in words:
                    port = _free_port()
                elif "shared memory" not in words:
                    # Leftover children of a killed server keep its memory for a moment; anything else is final.
                    if says_full(words):
                        raise no_space(self._files.data_dir, self.needed_bytes, _WHAT) from error
                    raise Unavailable(f"Postgres does not start: {_last_lines(words)}") from error
                _pause()
                continue
            self._files.write_state(started)
            return started

    def _await_ready(self, state: ServerState) -> None:
        """Wait until the server takes connections and is the one of this data directory."""
        deadline = self._clock.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                with psycopg.connect(state.dsn(USER), connect_timeout=2, autocommit=True) as connection:
                    row = connection.execute("show data_directory").fetchone()
            except psycopg.OperationalError as error:
                gone = state.pid is not None and not is_alive(state.pid)
                if gone or self._clock.monotonic() > deadline:
                    raise Unavailable(f"Postgres does not answer: {str(error).strip()}") from error
                _pause()
                continue
            if row is None or Path(row[0]).resolve() != self._files.pgdata:
                raise Unavailable(f"another server answers on port {state.port}")
            return

    def _make_database(self, state: ServerState) -> None:
        with psycopg.connect(state.dsn(USER), autocommit=True) as connection:
            if connection.execute("select 1 from pg_database where datname = %s", (DATABASE,)).fetchone() is None:
                connection.execute(f'create database "{DATABASE}"')

    def _await_end(self, pid: int) -> bool:
        deadline = self._clock.monotonic() + _STOP_TIMEOUT_S
        while self._clock.monotonic() < deadline:
            if not is_alive(pid):
                return True
            _pause()
        return False


def _last_lines(text: str) -> str:
    """The end of a program's output in whole lines; of a single longer one its beginning."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept: list[str] = []
    while lines and sum(map(len, kept)) + len(lines[-1]) <= _TAIL_CHARS:
        kept.insert(0, lines.pop())
    return " | ".join(kept or [line[:_TAIL_CHARS] for line in lines[-1:]])


def _pause() -> None:
    threading.Event().wait(_PAUSE_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Postgres itself binds: connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
