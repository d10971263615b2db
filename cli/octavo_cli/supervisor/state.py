"""What the supervisor says about itself in run/up.json, and the lock that says it lives. Starts nothing."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from octavo_cli.datadir import DataDir


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """One process, as last seen.

    ``state``: starting, ready, not ready, waiting, crashing, failed, stopped; unknown while nobody can look at it.
    """

    name: str
    role: str
    state: str
    pid: int | None
    # Clock ticks after boot at which the process began; with the pid it names one process for good.
    started: int | None
    address: str
    http_address: str
    restarts: int
    # Why it is not ready.
    reason: str
    log: str


def unseen(service: ServiceState) -> ServiceState:
    """What is left to say of a process that lives and cannot be looked at."""
    return service if service.pid is None else replace(service, state="unknown", reason="cannot be looked at")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpState:
    """The platform, as last seen. ``phase``: preparing, starting, ready, stopping, failed."""

    pid: int
    started: int | None
    phase: str
    # What is being done, and how much of it, while preparing.
    detail: str = ""
    fraction: float | None = None
    error: str = ""
    hint: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    services: tuple[ServiceState, ...] = ()
    embedded_database: bool = False
    # Why nobody can look at the services; then what is said of them is old.
    trouble: str = ""
    # Where the supervisor's own words go.
    log: str = ""

    @property
    def grpc_addresses(self) -> list[str]:
        """Gateways' gRPC addresses."""
        return [s.address for s in self.services if s.role == "gateway"]

    @property
    def http_addresses(self) -> list[str]:
        """Gateways' HTTP addresses."""
        return [s.http_address for s in self.services if s.role == "gateway"]

    @property
    def console_address(self) -> str:
        """The console's address; empty when there is none."""
        return next((s.http_address for s in self.services if s.role == "console"), "")

    @property
    def not_ready(self) -> list[str]:
        """Why the platform is not ready, a sentence each."""
        if self.trouble:
            return [self.trouble]
        return [f"{s.name}: {s.reason or s.state}" for s in self.services if s.state != "ready"]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> UpState:
        """Inverse of to_json; raises TypeError or KeyError for anything else."""
        services = tuple(ServiceState(**service) for service in value["services"])
        return cls(**{**value, "services": services})


def write(path: Path, state: UpState) -> None:
    """Replace the file in one step: readers see the old state or the new one."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(state.to_json(), indent=1) + "\n")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read(path: Path) -> UpState | None:
    """The last state written; None when there is none that can be read."""
    try:
        return UpState.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


class UpLock:
    """The lock of a data directory. The system frees it when its holder dies, however it dies."""

    def __init__(self, data_dir: DataDir) -> None:
        self._path = data_dir.lock_file
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Take the lock; False when another process holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Free the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None


def is_up(data_dir: DataDir) -> bool:
    """True while a supervisor holds the lock. Writes nothing: the directory may be another's, or none at all."""
    try:
        descriptor = os.open(data_dir.lock_file, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
