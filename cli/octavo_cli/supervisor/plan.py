"""Says which processes a platform consists of, with their arguments and environments. Pure: starts nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# In the environment of every process of a platform: finds them all again, whatever happened to their parents.
MARK = "SUPERVISED_BY_OCTAVO"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What was asked for."""

    workers: int = 1
    gateways: int = 1
    schedulers: int = 1
    edge_builders: int = 0
    model: str = ""
    console: bool = True

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


def differences(
    wanted: UpOptions, given: Collection[str], variables: Mapping[str, str], running: Mapping[str, Any]
) -> list[str]:
    """What was asked for and is otherwise in a platform that runs, a few words each.

    Only what somebody has said counts: the options in ``given`` and the variables that are set, with their values.
    ``running`` is what the platform's supervisor has written down of its own.
    """
    found = [
        f"--{name.replace('_', '-')} is {running[name]}, not {getattr(wanted, name)}"
        for name in ("workers", "gateways", "schedulers", "edge_builders", "model")
        if name in given and running.get(name, getattr(wanted, name)) != getattr(wanted, name)
    ]
    if "no_console" in given and running.get("console") and not wanted.console:
        found.append("it has a console, and --no-console was given")
    theirs = running.get("variables", variables)
    return found + [
        f"{name} is {theirs.get(name) or 'not set'}, not {value}"
        for name, value in variables.items()
        if theirs.get(name) != value
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the processes need to know about their surroundings."""

    python: str
    data_dir: Path
    host: str
    database_url: str
    num_cores: int
    # (gRPC, HTTP) of each gateway.
    gateway_ports: tuple[tuple[int, int], ...]
    console_port: int
    model_path: str
    model_name: str
    # 0: the worker's share of the cores.
    worker_threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One process. ``env`` is added to the supervisor's own; addresses are empty when the process picks its port."""

    name: str
    role: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    address: str = ""
    http_address: str = ""


def plan(options: UpOptions, site: Site) -> list[ServiceSpec]:
    """All processes of a platform, in the order in which they are started."""
    reach = "127.0.0.1" if site.host in ("0.0.0.0", "::") else site.host
    common = {
        MARK: str(site.data_dir),
        "OCTAVO_DATA_DIR": str(site.data_dir),
        "OCTAVO_DATABASE_URL": site.database_url,
        "OCTAVO_HOST": site.host,
        "PYTHONUNBUFFERED": "1",
    }
    specs = [
        ServiceSpec(name=f"scheduler-{i}", role="scheduler", argv=(site.python, "-m", "octavo_scheduler"), env=common)
        for i in range(options.schedulers)
    ]
    for i, (grpc_port, http_port) in enumerate(site.gateway_ports):
        ports = {"OCTAVO_GATEWAY_GRPC_PORT": str(grpc_port), "OCTAVO_GATEWAY_HTTP_PORT": str(http_port)}
        specs.append(
            ServiceSpec(
                name=f"gateway-{i}",
                role="gateway",
                argv=(site.python, "-m", "octavo_gateway"),
                env={**common, **ports},
                address=f"{reach}:{grpc_port}",
                http_address=f"{reach}:{http_port}",
            )
        )
    threads = site.worker_threads or worker_threads(site.num_cores, options.workers)
    model = {"OCTAVO_WORKER_MODEL": site.model_path, "OCTAVO_WORKER_MODEL_NAME": site.model_name}
    specs += [
        ServiceSpec(
            name=f"worker-{i}",
            role="worker",
            argv=(site.python, "-m", "octavo_worker"),
            env={**common, **model, **thread_env(threads)},
        )
        for i in range(options.workers)
    ]
    specs += [
        ServiceSpec(
            name=f"edge-builder-{i}",
            role="edge_builder",
            argv=(site.python, "-m", "octavo_edge", "serve"),
            env=common,
        )
        for i in range(options.edge_builders)
    ]
    if options.console:
        specs.append(_console(site, specs, common))
    return specs


def _console(site: Site, specs: list[ServiceSpec], common: Mapping[str, str]) -> ServiceSpec:
    # Loopback, wherever the services listen: the console acts with an admin key.
    address = f"127.0.0.1:{site.console_port}"
    env = {
        **{name: value for name, value in common.items() if name != "OCTAVO_DATABASE_URL"},
        "OCTAVO_ADDRESS": ",".join(spec.address for spec in specs if spec.role == "gateway"),
        "OCTAVO_CONSOLE_PORT": str(site.console_port),
        "OCTAVO_CONSOLE_HOST": "127.0.0.1",
        "OCTAVO_ADMIN_KEY_FILE": str(site.data_dir / "secrets" / "admin_key"),
        # An ordinary key in the caller's environment would win over the file.
        "OCTAVO_API_KEY": "",
    }
    argv = (site.python, "-m", "octavo_ui")
    return ServiceSpec(name="console-0", role="console", argv=argv, env=env, http_address=address)


def worker_threads(num_cores: int, num_workers: int) -> int:
    """A worker's share of the cores."""
    return max(1, num_cores // max(1, num_workers))


def thread_env(num_threads: int) -> dict[str, str]:
    """Numeric libraries take so many threads and let go of the core while they wait."""
    count = str(num_threads)
    return {
        "OCTAVO_WORKER_NUM_THREADS": count,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMBA_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
    }
