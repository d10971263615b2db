"""The peers' own environments under build/peers/. Knows how each is installed, not how it is measured.

Everything is pinned by version, and by digest for the interpreter that the digests were taken for; pip resolves
nothing. An environment that is ready carries the digest of its recipe; one that was made by another recipe is made
anew. What cannot be installed raises Missing with the reason.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.llama_build import NotBuilt, Run, build_library, build_server

HERE = Path(__file__).parent
FOLDER = HERE.parent.parent / "build" / "peers"
STEP_TIMEOUT_S = 3600
_READY = ".ready"
# What the digests in the requirements were taken for; another interpreter gets other files of the same versions.
_HASHED_FOR = ("Linux", "x86_64", "3.11")


class Missing(RuntimeError):
    """A peer cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A peer's environment: all of its requirements in NAME.txt beside this file, and steps around them."""

    name: str
    # Installed before the others, by version only: its file depends on the index that it is taken from.
    first: str = ""
    # The environment that this one is made in; it then has no interpreter of its own.
    inside: str = ""
    # What comes after the requirements, in the folder of the interpreter.
    finish: Callable[[Path, Run], None] | None = None

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / (self.inside or self.name)

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> Path:
        """Holds the digest of the recipe that it was made by."""
        return self.folder / f"{_READY}-{self.name}"

    @property
    def digest(self) -> str:
        """Changes with whatever is installed, and with how it is built."""
        parts = [self.first, ENVIRONMENTS[self.inside].digest if self.inside else _requirements(self)]
        if self.finish is not None:
            parts.append(Path(self.finish.__code__.co_filename).read_text(encoding="utf-8"))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def environment(name: str) -> Environment:
    """A peer's environment that is ready; raises Missing."""
    found = ENVIRONMENTS[name]
    if not found.ready.exists() or found.ready.read_text(encoding="utf-8") != found.digest:
        raise Missing("its environment is not set up: run `make bench-peers`")
    return found


def set_up(name: str) -> Environment:
    """Make a peer's environment unless it is ready; raises Missing with the last words of what failed."""
    wanted = ENVIRONMENTS[name]
    try:
        return environment(name)
    except Missing:
        pass
    run = _runner(FOLDER / "logs" / f"setup-{name}.log")
    if wanted.inside:
        set_up(wanted.inside)
    else:
        if wanted.ready.exists():
            shutil.rmtree(wanted.folder)
        _install(wanted, run)
    if wanted.finish is not None:
        try:
            wanted.finish(wanted.folder, run)
        except (NotBuilt, OSError) as error:
            raise Missing(str(error)) from error
    wanted.ready.write_text(wanted.digest, encoding="utf-8")
    return wanted


def _install(wanted: Environment, run: Run) -> None:
    """An interpreter of its own and all requirements; pip takes what is named and nothing else."""
    if not wanted.python.exists():
        run([sys.executable, "-m", "venv", str(wanted.folder)])
    pip = [str(wanted.python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar=off", "--no-deps"]
    if wanted.first:
        # As the Makefile has it: an index to take torch from.
        index = os.environ.get("TORCH_INDEX")
        run([*pip, *(["--extra-index-url", index] if index else []), wanted.first])
    requirements = wanted.folder / "requirements.txt"
    requirements.write_text(_requirements(wanted), encoding="utf-8")
    run([*pip, "--requirement", str(requirements)])


def _requirements(wanted: Environment) -> str:
    """What is installed, with digests where they are those of this interpreter's files."""
    text = (HERE / f"{wanted.name}.txt").read_text(encoding="utf-8")
    here = (platform.system(), platform.machine(), ".".join(platform.python_version_tuple()[:2]))
    if here == _HASHED_FOR:
        return text
    return "".join(f"{line.split(' --hash=')[0]}\n" for line in text.splitlines())


def _runner(log: Path) -> Run:
    """Runs commands that write to ``log``; raises Missing with the last words of one that fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")

    def run(argv: Sequence[str]) -> None:
        with log.open("a", encoding="utf-8") as output:
            output.write(f"$ {' '.join(argv)}\n")
            output.flush()
            try:
                done = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=STEP_TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Missing(f"{argv[0]}: {error}") from error
        if done.returncode:
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
            where = log.relative_to(FOLDER.parent.parent)
            raise Missing(f"{Path(argv[0]).name} ended with {done.returncode}: {words} (see {where})")

    return run


ENVIRONMENTS = {
    # Named by its local version: the one without is a build of several gigabytes for GPUs.
    "vllm": Environment(name="vllm", first="torch==2.13.0+cpu"),
    "openvino-genai": Environment(name="openvino-genai"),
    "llama-cpp": Environment(name="llama-cpp", finish=build_library),
    "llama-server": Environment(name="llama-server", inside="llama-cpp", finish=build_server),
}
