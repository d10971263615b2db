"""Servers of the systems, each in processes of its own on a free port of this machine, until a block ends."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import httpx
from benchmarks.peers.client import Target
from benchmarks.peers.environments import FOLDER, set_up
from benchmarks.peers.process import CHILDREN, ChildFailed
from benchmarks.peers.systems import Setting, vllm_env
from benchmarks.serving import platform

START_TIMEOUT_S = 300
# Requests that a server computes at once.
SLOTS = 32
# Of the demo model.
END_OF_SEQUENCE = 2
Server = Callable[[Setting], AbstractContextManager[Target]]


@contextmanager
def octavo(setting: Setting) -> Iterator[Target]:
    """A whole platform, in the precision that its rule takes."""
    with platform(setting.gguf) as at:
        yield Target(url=f"http://{at.http}/v1", key=at.key, extra={"ignore_eos": True})


@contextmanager
def vllm(setting: Setting) -> Iterator[Target]:
    """`vllm serve`."""
    python, port = set_up("vllm").python, _free_port()
    argv = [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(setting.directory), "--served-model-name", "demo"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", str(SLOTS)),
    ]
    env = {**vllm_env(setting), "OMP_NUM_THREADS": str(setting.threads)}
    with _running("vllm-server", argv, env) as process:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/health", process)
        yield Target(url=f"{url}/v1", model="demo", extra={"ignore_eos": True})


@contextmanager
def llama_server(setting: Setting) -> Iterator[Target]:
    """llama.cpp's own server, which computes many requests at once."""
    python = set_up("llama-server").python
    argv = [str(python), str(CHILDREN / "llama_server.py"), str(setting.gguf), str(setting.threads), str(SLOTS)]
    with _running("llama-server", argv, {}, speaks=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        if not url:
            raise ChildFailed(f"llama.cpp's server ended with {process.wait()}")
        yield Target(url=f"{url}/v1", extra={"ignore_eos": True})


@contextmanager
def llama_cpp_python(setting: Setting) -> Iterator[Target]:
    """The server of llama-cpp-python, which computes one request at a time."""
    python, port = set_up("llama-cpp").python, _free_port()
    argv = [
        *(str(python), "-m", "llama_cpp.server", "--model", str(setting.gguf)),
        *("--host", "127.0.0.1", "--port", str(port), "--n_ctx", "4096"),
        *("--n_threads", str(setting.threads), "--n_threads_batch", str(setting.threads)),
        # Else a new request ends the one under way.
        *("--interrupt_requests", "False"),
    ]
    with _running("llama-cpp-python-server", argv, {}) as process:
        url = f"http://127.0.0.1:{port}/v1"
        _wait(f"{url}/models", process)
        yield Target(url=url, extra={"logit_bias": {str(END_OF_SEQUENCE): -100.0}})


SERVERS: Mapping[str, Server] = {
    "Octavo's platform": octavo,
    "vLLM serve": vllm,
    "llama.cpp's server": llama_server,
    "llama-cpp-python's server": llama_cpp_python,
}


@contextmanager
def _running(
    name: str, argv: Sequence[str], env: Mapping[str, str], *, speaks: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    log = FOLDER / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if speaks else errors,
            stderr=errors,
            env={**os.environ, **env},
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ChildFailed(f"the server ended with {process.returncode}")
        try:
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise ChildFailed(f"the server did not answer within {START_TIMEOUT_S} s")
