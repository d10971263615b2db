"""Images built from this tree and the compose stack on free ports. Skips with the reason without a Docker engine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

ROOT = Path(__file__).parents[2]
# Set before testcontainers is imported: no helper container, and published ports are on loopback.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
os.environ.setdefault("TC_HOST", "127.0.0.1")
CONTAINER_USER = 10001


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except docker.errors.DockerException as e:
        pytest.skip(f"no Docker engine answers: {e}")
    yield client
    client.close()


@pytest.fixture(scope="session")
def images(engine: docker.DockerClient) -> list[str]:
    """Every image of the stack, built from this tree."""
    build = subprocess.run(
        [ROOT / "deploy/build-images.sh"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return [f"octavo-{name}:dev" for name in ("gateway", "scheduler", "worker", "ui", "cli")]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running compose stack."""

    grpc: str
    http: str
    console: str
    data_dir: Path
    project: str
    env: dict[str, str]

    def compose(self, *args: str) -> str:
        run = subprocess.run(
            ["docker", "compose", "-p", self.project, *args],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    def key(self, name: str) -> str:
        return (self.data_dir / "secrets" / name).read_text().strip()


@pytest.fixture(scope="session")
def stack(images: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack with two workers, its data directory filled by `octavo models pull`."""
    data = tmp_path_factory.mktemp("octavo-data")
    ports = {name: _free_port() for name in ("GATEWAY_GRPC", "GATEWAY_HTTP", "CONSOLE")}
    env = {**os.environ, "OCTAVO_DATA_DIR": str(data), **{f"OCTAVO_{n}_PORT": str(p) for n, p in ports.items()}}
    env |= {"OCTAVO_WORKER_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "octavo_cli", "models", "pull", "smollm2-135m"]
    pull = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert pull.returncode == 0, pull.stderr
    for parent in (*data.parents[:2], data):  # pytest makes its directories for the owner only
        parent.chmod(0o755)
    for path in (data, *data.rglob("*")):
        os.chown(path, CONTAINER_USER, CONTAINER_USER)
    stack = Stack(
        grpc=f"127.0.0.1:{ports['GATEWAY_GRPC']}",
        http=f"http://127.0.0.1:{ports['GATEWAY_HTTP']}",
        console=f"http://127.0.0.1:{ports['CONSOLE']}",
        data_dir=data,
        project="octavo-test",
        env=env,
    )
    try:
        stack.compose("up", "--detach", "--wait", "--wait-timeout", "180", "--scale", "worker=2")
        yield stack
    finally:
        command = ["docker", "compose", "-p", "octavo-test", "logs", "--no-color"]
        logs = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        (tmp_path_factory.getbasetemp() / "compose.log").write_text(logs.stdout)
        stack.compose("down", "--volumes", "--timeout", "10")
        shutil.rmtree(data, ignore_errors=True)
