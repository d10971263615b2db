"""The systems that are compared: where each runs, with what, and what it holds of the model. Knows no workload."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import FOLDER, Environment, Missing, environment
from benchmarks.peers.process import Child

from octavo_cli.supervisor.plan import thread_env


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all systems share."""

    # A GGUF file, and the same weights as a directory in bfloat16 for what reads no GGUF.
    gguf: Path
    directory: Path
    threads: int
    # Environments that could not be made in this run, with the reason.
    missing: Mapping[str, str] = field(default_factory=dict)

    def environment(self, name: str) -> Environment:
        """A peer's environment; raises Missing."""
        if name in self.missing:
            raise Missing(self.missing[name])
        return environment(name)

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
    # Bytes of a weight in memory; None takes the GGUF file's. Of ours the process tells, once it has loaded the model.
    bytes_per_weight: float | None = None
    reads_directory: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is ours."""
        return self.environment is None


# Groups of 32 bytes share a factor of four; None is as the GGUF file has it.
_OWN_BYTES = {"float32": 4.0, "bfloat16": 2.0, "w8a8": 1.125, "w4a8": None, "w4a16": None}


def own_bytes_per_weight(numerics_id: str) -> float | None:
    """Bytes of a weight in our engine, by the precision with which its model's numerics begin."""
    return _OWN_BYTES[re.split("[-/]", numerics_id, maxsplit=1)[0]]


def own(precision: str) -> System:
    """Our engine in a precision; ``auto`` is what the rule takes."""
    return System(
        name=f"Octavo {precision}",
        script="octavo_child.py",
        environment=None,
        options={"precision": precision},
    )


def _vllm(name: str, *, eager: bool) -> System:
    return System(
        name=name,
        script="vllm_child.py",
        environment="vllm",
        bytes_per_weight=2.0,
        reads_directory=True,
        options={"eager": eager},
    )


PEERS = (
    System(name="OpenVINO GenAI", script="openvino_child.py", environment="openvino-genai"),
    System(name="llama.cpp", script="llama_cpp_child.py", environment="llama-cpp"),
    # As it comes: compiled, which takes a compiler and a minute of loading; and without.
    _vllm("vLLM", eager=False),
    _vllm("vLLM eager", eager=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A system whose model is loaded."""

    child: Child
    version: str
    # None takes the GGUF file's.
    bytes_per_weight: float | None


def vllm_env(setting: Setting) -> dict[str, str]:
    """What vLLM wants to be told by environment variables."""
    return {
        "VLLM_CPU_OMP_THREADS_BIND": setting.cores,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # What it compiles is kept.
        "VLLM_CACHE_ROOT": str(FOLDER / "vllm-cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def running(system: System, setting: Setting) -> Iterator[Running]:
    """The system in a process of its own with the model loaded; raises Missing or ChildFailed."""
    python = Path(sys.executable) if system.environment is None else setting.environment(system.environment).python
    env = thread_env(setting.threads)
    if system.environment == "vllm":
        env |= vllm_env(setting)
    log = FOLDER / "logs" / f"{system.name.replace(' ', '-')}.log"
    with Child(python, system.script, env=env, log=log) as child:
        model = setting.directory if system.reads_directory else setting.gguf
        answer = child("load", model=str(model), threads=setting.threads, **system.options)
        bytes_per_weight = system.bytes_per_weight
        if system.is_own:
            bytes_per_weight = own_bytes_per_weight(answer["numerics_id"])
        yield Running(child=child, version=answer["version"], bytes_per_weight=bytes_per_weight)
