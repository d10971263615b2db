"""Servers of the systems, each in processes of its own on a free port of this machine, until a block ends.

Each computes up to 32 requests at once with as many threads as there are cores, and says its version and flags. All
let go of a core while their threads wait for each other (`thread_env`): server, client and threads share the cores, and
OpenMP's own way, to spin, makes a step many times longer as soon as anything else wants one.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from benchmarks.peers.client import Target
from benchmarks.peers.environments import FOLDER
from benchmarks.peers.llama_build import PACKAGE, server_in
from benchmarks.peers.process import ChildFailed
from benchmarks.peers.systems import Setting, own_bytes_per_weight, vllm_env
from benchmarks.serving import platform

from octavo_cli.supervisor.plan import thread_env

START_TIMEOUT_S = 300
END_TIMEOUT_S = 30
# Requests that a server computes at once, and tokens that each may have.
SLOTS, SLOT_TOKENS = 32, 512
Server = Callable[[Setting], AbstractContextManager[Target]]
OWN = "Octavo"


@contextmanager
def octavo(setting: Setting) -> Iterator[Target]:
    """A whole platform as `octavo up` starts it, in the precision that its rule takes."""
    with platform(setting.gguf) as at:
        url = f"http://{at.http}/v1"
        models: Any = httpx.get(
            f"{url}/models", headers={"authorization": f"Bearer {at.key}"}, timeout=30, trust_env=False
        ).json()
        numerics = models["data"][0]["octavo"]["numerics_ids"][0]
        yield Target(
            url=url,
            key=at.key,
            extra={"ignore_eos": True},
            about=f"`octavo up`, {numerics}",
            bytes_per_weight=own_bytes_per_weight(numerics),
        )


def vllm(*, eager: bool) -> Server:
    """VLLM's own server in bfloat16; ``eager`` compiles nothing."""

    @contextmanager
    def start(setting: Setting) -> Iterator[Target]:
        python, port = setting.environment("vllm").python, _free_port()
        flags = [
            *("--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", str(SLOTS)),
            *("--disable-log-stats", "--disable-uvicorn-access-log"),
            *(["--enforce-eager"] if eager else []),
        ]
        # `vllm serve` itself asks for a distribution that is called vllm, and the one for CPUs is not.
        argv = [str(python), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", str(setting.directory), "--served-model-name", "demo"]
        argv += ["--host", "127.0.0.1", "--port", str(port), *flags]
        name = "vllm-server-eager" if eager else "vllm-server"
        with _running(name, argv, {**thread_env(setting.threads), **vllm_env(setting)}, port) as url:
            version = httpx.get(f"{url}/version", timeout=30, trust_env=False).json()["version"]
            bound = f"VLLM_CPU_OMP_THREADS_BIND={setting.cores}"
            yield Target(
                url=f"{url}/v1",
                model="demo",
                extra={"ignore_eos": True},
                about=f"vLLM {version}, `{' '.join(flags)}`, {bound}",
                bytes_per_weight=2.0,
            )

    return start


@contextmanager
def llama_server(setting: Setting) -> Iterator[Target]:
    """llama.cpp's own server, which computes many requests at once; from the source in llama-cpp-python."""
    binary, port = server_in(setting.environment("llama-server").folder), _free_port()
    threads = str(setting.threads)
    flags = [
        *("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * SLOT_TOKENS), "--cont-batching"),
        *("--threads", threads, "--threads-batch", threads),
        # No two prompts begin alike: to keep old ones, and to look for them, is work for nothing.
        *("--cache-ram", "0", "--slot-prompt-similarity", "0"),
    ]
    where = ["--model", str(setting.gguf), "--offline", "--host", "127.0.0.1", "--port", str(port)]
    words = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version: (\S+).*commit (\w+)", words.stdout + words.stderr)
    version = f"{found[1]} ({found[2]})" if found else "of an unknown version"
    with _running("llama-server", [str(binary), *where, *flags], thread_env(setting.threads), port) as url:
        about = f"llama.cpp {version} of {PACKAGE}, `llama-server {' '.join(flags)}`"
        yield Target(url=f"{url}/v1", extra={"ignore_eos": True}, about=about)


# OpenVINO GenAI has no server of its own, and OpenVINO Model Server is no package of Python's index.
SERVERS: Mapping[str, Server] = {
    OWN: octavo,
    "vLLM": vllm(eager=False),
    "vLLM eager": vllm(eager=True),
    "llama.cpp": llama_server,
}


@contextmanager
def _running(name: str, argv: Sequence[str], env: Mapping[str, str], port: int) -> Iterator[str]:
    """A server that answers, by its address; its processes end with the block."""
    log = FOLDER / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        # A group of its own: what the server starts ends with it.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **env},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/health", process, log)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            where = log.relative_to(FOLDER.parent.parent)
            raise ChildFailed(f"the server ended with {process.returncode} (see {where})")
        try:
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise ChildFailed(f"the server did not answer within {START_TIMEOUT_S} s")
