"""The files of a Postgres server of our own: address, lock, log, and what its pid file says. Starts nothing."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

HOST = "127.0.0.1"
DATABASE = "octavo"
USER = "postgres"
_MAX_LOG_BYTES = 10 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What pg.json holds."""

    port: int
    password: str
    pid: int | None = None

    def dsn(self, database: str = DATABASE) -> str:
        """Address of a database of the server, with its password."""
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/{database}"


class ServerFiles:
    """All of them, in one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.pgdata = data_dir / "pg"
        self.state_file = data_dir / "pg.json"
        self._log_file = data_dir / "logs" / "postgres.log"

    @property
    def has_cluster(self) -> bool:
        """Whether the cluster is complete."""
        return (self.pgdata / "PG_VERSION").exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of starts and stops; without a data directory there is nothing to lock."""
        if not self.data_dir.exists():
            yield
            return
        with (self.data_dir / "pg.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read_state(self) -> ServerState | None:
        """What pg.json says; None before the first start."""
        try:
            value = json.loads(self.state_file.read_text())
            return ServerState(port=value["port"], password=value["password"], pid=value["pid"])
        except FileNotFoundError:
            return None

    def write_state(self, state: ServerState) -> None:
        """Write pg.json; no reader sees half of it."""
        fresh = self.state_file.with_suffix(".tmp")
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps({"dsn": state.dsn(), **asdict(state)}))
        fresh.replace(self.state_file)

    def open_log(self) -> IO[bytes]:
        """Open the log to append to it; a large one is put aside first."""
        self._log_file.parent.mkdir(exist_ok=True)
        if self.log_size() > _MAX_LOG_BYTES:
            self._log_file.replace(self._log_file.with_suffix(".log.1"))
        return self._log_file.open("ab")

    def log_size(self) -> int:
        """Size in bytes; a mark for log_since."""
        return self._log_file.stat().st_size if self._log_file.exists() else 0

    def log_since(self, mark: int) -> str:
        """What was written after the mark."""
        with self._log_file.open("rb") as file:
            file.seek(mark if self.log_size() >= mark else 0)
            return file.read().decode(errors="replace")

    # --- the pid file

    def _pid_file(self) -> list[str]:
        """Lines of postmaster.pid: pid, folder, start, port, ...; fewer while the server starts."""
        try:
            return (self.pgdata / "postmaster.pid").read_text().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []

    def running_pid(self) -> int | None:
        """The server's pid, if it lives."""
        lines = self._pid_file()
        pid = int(lines[0]) if lines and lines[0].strip().isdigit() else None
        return pid if pid is not None and is_alive(pid) and is_postgres(pid) else None

    def running_port(self) -> int | None:
        """The port that the server has written down; None while it starts."""
        lines = self._pid_file()
        return int(lines[3]) if len(lines) > 3 and lines[3].strip().isdigit() else None

    def forget_stale_pid(self) -> None:
        """Remove the pid file of a dead server: with its pid given to another process Postgres would not start."""
        if self._pid_file() and self.running_pid() is None:
            (self.pgdata / "postmaster.pid").unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether the process has not ended; a zombie has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self/stat").exists()


def is_postgres(pid: int) -> bool:
    """Whether the pid is a Postgres server's; a pid file may outlive its process, and the pid be given again."""
    try:
        return "postgres" in Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self/comm").exists()
