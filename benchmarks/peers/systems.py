"""The systems that are compared: where each runs, with what, and what it holds of the model. Knows no workload."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import FOLDER, set_up
from benchmarks.peers.process import Child

from octavo_cli.supervisor.plan import thread_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all systems share."""

    # A GGUF file, and the same weights as a directory in bfloat16 for what reads no GGUF.
    gguf: Path
    directory: Path
    threads: int

    @property
    def cores(self) -> str:
        """The cores that may be used, as a range."""
        cores = sorted(os.sched_getaffinity(0))[: self.threads]
        return f"{cores[0]}-{cores[-1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One engine in one precision."""

    name: str
    script: str
    # None is this interpreter's own environment.
    environment: str | None
    # Bytes of a weight in memory; None takes the GGUF file's.
    bytes_per_weight: float | None = None
    reads_directory: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is ours."""
        return self.environment is None


def own(precision: str) -> System:
    """Our engine in a precision; ``auto`` is what the rule takes."""
    size = {"float32": 4.0, "w8a8": 1.125}.get(precision)
    return System(
        name=f"octavo {precision}",
        script="octavo_child.py",
        environment=None,
        bytes_per_weight=size,
        options={"precision": precision},
    )


PEERS = (
    System(name="OpenVINO GenAI", script="openvino_child.py", environment="openvino-genai"),
    System(name="llama.cpp", script="llama_cpp_child.py", environment="llama-cpp"),
    System(name="vLLM", script="vllm_child.py", environment="vllm", bytes_per_weight=2.0, reads_directory=True),
)


def vllm_env(setting: Setting) -> dict[str, str]:
    """What vLLM wants to be told by environment variables."""
    return {
        "VLLM_CPU_OMP_THREADS_BIND": setting.cores,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def running(system: System, setting: Setting) -> Iterator[tuple[Child, str]]:
    """The system in a process of its own with the model loaded, and its version; raises Missing or ChildFailed."""
    python = Path(sys.executable) if system.environment is None else set_up(system.environment).python
    # Peers wait as they do by themselves.
    env = thread_env(setting.threads) if system.is_own else {"OMP_NUM_THREADS": str(setting.threads)}
    if system.environment == "vllm":
        env |= vllm_env(setting)
    log = FOLDER / "logs" / f"{system.name.replace(' ', '-')}.log"
    with Child(python, system.script, env=env, log=log) as child:
        model = setting.directory if system.reads_directory else setting.gguf
        answer = child("load", model=str(model), threads=setting.threads, **system.options)
        yield child, answer["version"]
