"""What `octavo doctor` finds. Every look is one function that returns findings and raises nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Any

import psutil

from octavo_cli import settings as settings_module
from octavo_cli.context import Context
from octavo_cli.failures import reason
from octavo_cli.output import times
from octavo_cli.settings import CliSettings
from octavo_cli.supervisor import state
from octavo_cli.supervisor.plan import worker_threads
from octavo_common import space
from octavo_common.errors import OctavoError
from octavo_common.settings import env_names, redacted, report_unknown

_GIB = 2**30
# The demo platform: a model, its blocks, six interpreters.
_WANTED_MEMORY, _WANTED_DISK = 3 * _GIB, 2 * _GIB
_SERVICES = ("octavo_gateway", "octavo_scheduler", "octavo_worker", "octavo_ui")


class Level(Enum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    found: str
    hint: str = ""


def diagnose(context: Context) -> list[Finding]:
    """Look at everything, in the order in which it matters."""
    looks = (_python, _machine, _threads, _data_dir, _database, _services, _docker, _settings)
    findings: list[Finding] = []
    for look in looks:
        try:
            findings += look(context)
        except (OSError, OctavoError) as error:
            # The other looks may say more of it.
            findings.append(Finding(level=Level.ERROR, what=look.__name__.strip("_"), found=reason(error, context)))
    return findings


def _ok(what: str, found: object, *, good: bool = True, hint: str = "", bad: Level = Level.WARNING) -> Finding:
    return Finding(level=Level.OK if good else bad, what=what, found=str(found), hint="" if good else hint)


def _python(context: Context) -> Iterator[Finding]:
    version = platform.python_version()
    yield _ok(
        "python", f"{version} ({sys.executable})", good=sys.version_info >= (3, 11), hint="3.11 or later is needed"
    )
    for name in _SERVICES:
        there = importlib.util.find_spec(name) is not None
        yield _ok(name, "installed" if there else "missing", good=there, hint="`make setup`", bad=Level.ERROR)


def _machine(context: Context) -> Iterator[Finding]:
    from octavo_cli.supervisor.supervisor import num_cores

    cores = num_cores()
    yield _ok("cores", f"{cores} of {os.cpu_count()}, {platform.machine()}, {platform.system()} {platform.release()}")
    memory = psutil.virtual_memory()
    yield _ok(
        "memory",
        f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB free",
        good=memory.available > _WANTED_MEMORY,
        hint="a worker may not get its block pool; lower OCTAVO_WORKER_KV_BYTES",
    )


def _threads(context: Context) -> Iterator[Finding]:
    from octavo_cli.supervisor.supervisor import num_cores

    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        yield Finding(level=Level.ERROR, what="torch", found="missing", hint="`make setup` installs it for the worker")
        return
    threads = context.settings.worker_threads or worker_threads(num_cores(), 1)
    yield _ok("torch", f"{torch}; one worker takes {threads} threads")


def _data_dir(context: Context) -> Iterator[Finding]:
    root = context.data_dir.root
    problem = context.data_dir.problem()
    if problem:
        hint = "choose another one with --data-dir or OCTAVO_DATA_DIR"
        yield Finding(level=Level.ERROR, what="data directory", found=problem, hint=hint)
        return
    free = space.free_bytes(root)
    new = "" if root.exists() else " (not made yet; `octavo up` makes it)"
    good, hint = free > _WANTED_DISK, f"a platform with the demo model takes {_WANTED_DISK / _GIB:.0f} GiB"
    yield _ok("data directory", f"{root}{new}, {free / _GIB:.1f} GiB free", good=good, hint=hint)
    for name in ("internal_token", "admin_key", "user_key"):
        path = root / "secrets" / name
        if path.exists():
            private = path.stat().st_mode & 0o077 == 0
            yield _ok(
                f"secret {name}", "there" if private else "readable by others", good=private, hint=f"chmod 600 {path}"
            )


def _database(context: Context) -> Iterator[Finding]:
    from octavo_common.db import migrate

    try:
        url = context.database_url()
    except OctavoError as error:
        yield Finding(level=Level.NOTE, what="database", found=error.message, hint=error.hint)
        return
    try:
        revision, newest = migrate.current(url), migrate.head()
    except OctavoError as error:
        hint = error.hint or "is it up, and is OCTAVO_DATABASE_URL right?"
        yield Finding(level=Level.ERROR, what="database", found=error.message, hint=hint)
        return
    where = "OCTAVO_DATABASE_URL" if context.settings.database_url else "embedded"
    current = revision == newest
    yield _ok("database", f"{where}, schema {revision}", good=current, hint="`octavo db migrate`", bad=Level.ERROR)


def _services(context: Context) -> Iterator[Finding]:
    if not state.is_up(context.data_dir):
        yield Finding(level=Level.NOTE, what="services", found="not running", hint="`octavo up` starts them")
        return
    up = state.read(context.data_dir.state_file)
    if up is None or not up.services:
        detail = up.detail if up else "the supervisor is starting"
        yield Finding(level=Level.NOTE, what="services", found=detail, hint="wait a moment")
        return
    if up.trouble:
        yield Finding(level=Level.ERROR, what="supervisor", found=up.trouble, hint="what follows is not looked at")
    for service in up.services:
        good = service.state == "ready"
        found = service.state if good else f"{service.state}: {service.reason}"
        if service.restarts:
            found += f", restarted {times(service.restarts)}"
        bad = Level.ERROR if service.state == "crashing" else Level.WARNING
        yield _ok(service.name, found, good=good, hint=f"see {service.log}", bad=bad)


def _docker(context: Context) -> Iterator[Finding]:
    """Containers are one way to run Octavo, so nothing about them is ever an error."""
    if importlib.util.find_spec("docker") is None:
        yield Finding(level=Level.NOTE, what="docker", found="its Python package is not installed (optional)")
        return
    import docker
    from docker.errors import DockerException

    try:
        _check_docker_socket()
        with closing(docker.from_env(timeout=3)) as client:
            version: Any = client.version()
            tags = sorted(tag for image in client.images.list() for tag in image.tags if tag.startswith("octavo"))
    except (DockerException, OSError) as error:
        words = " ".join(str(error).split())[:120]
        yield Finding(level=Level.NOTE, what="docker", found=f"no engine answers (optional): {words}")
        return
    yield _ok("docker", f"engine {version.get('Version')}, API {version.get('ApiVersion')}")
    found = ", ".join(tags) or "none"
    yield Finding(level=Level.NOTE, what="images", found=found, hint="" if tags else "`make images` builds them")


def _check_docker_socket() -> None:
    """Raise OSError when nobody listens at a local engine's socket: Docker's client would leave its own one open."""
    scheme, _, path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local:
            local.connect(path)


def _settings(context: Context) -> Iterator[Finding]:
    services, troubles = _ask_services()
    yield from troubles
    known = {*env_names(CliSettings), *_CONSOLE_NAMES, *(name for _, values in services for name in values)}
    environ = settings_module.environ()
    unknown = report_unknown(environ, known)
    for name in unknown:
        yield Finding(level=Level.WARNING, what=f"variable {name}", found="nobody reads it", hint="is it spelt right?")
    seen: set[str] = set()
    console = {name: environ.get(name, "") for name in _CONSOLE_NAMES}
    for title, values in (("octavo", redacted(context.settings)), *services, ("octavo_ui", console)):
        for name in sorted(values.keys() - seen):
            yield Finding(level=Level.NOTE, what=name, found=values[name] or "(unset)", hint=title)
        seen |= values.keys()


# Read by the console, which has no settings class of the common kind.
_CONSOLE_NAMES = ("OCTAVO_CONSOLE_HOST", "OCTAVO_ADMIN_KEY_FILE")
_CLASSES = (
    ("octavo_gateway", "GatewaySettings"),
    ("octavo_scheduler", "SchedulerSettings"),
    ("octavo_worker", "WorkerSettings"),
    ("octavo_edge.serving", "EdgeSettings"),
)


_CODE = """
import importlib, json, sys
from octavo_common import space
from octavo_common.errors import OctavoError
from octavo_common.settings import read, redacted
try:
    print(json.dumps(redacted(read(getattr(importlib.import_module(sys.argv[1] + ".settings"), sys.argv[2])))))
except OctavoError as error:
    sys.exit(error.message)
"""


def _ask_services() -> tuple[list[tuple[str, dict[str, str]]], list[Finding]]:
    """The services' own settings, and who cannot read them. A process each tells: no code of theirs is loaded here."""
    found: list[tuple[str, dict[str, str]]] = []
    troubles: list[Finding] = []
    for package, name in _CLASSES:
        done = subprocess.run(
            [sys.executable, "-c", _CODE, package, name], capture_output=True, text=True, check=False, timeout=30
        )
        if done.returncode == 0:
            found.append((package, json.loads(done.stdout)))
        else:
            words = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            troubles.append(Finding(level=Level.ERROR, what=f"settings of {package}", found=words))
    return found, troubles
