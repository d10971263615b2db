"""Builds llama.cpp for this very processor from llama-cpp-python's source: the library, and llama.cpp's own server.

Knows where things lie in that source, nothing of how they are measured.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

# Runs a command; raises with its last words when it fails.
Run = Callable[[Sequence[str]], None]

PACKAGE = "llama-cpp-python==0.3.36"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# One tree for library and server; only what a target needs is compiled. No web pages: they would be downloaded.
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_RPATH": "$ORIGIN",
    "GGML_NATIVE": "ON",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


class NotBuilt(RuntimeError):
    """It cannot be built here; the message says why."""


def server_in(folder: Path) -> Path:
    """The server's executable in the environment of llama.cpp; its libraries lie beside it."""
    return folder / "source" / "build" / "bin" / "llama-server"


def build_library(folder: Path, run: Run) -> None:
    """The library from the package's source, then the package around it."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise NotBuilt("llama.cpp is built from source, which needs a C++ compiler")
    work = folder / "source"
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    archive = work / f"{PACKAGE.replace('-', '_').replace('==', '-')}.tar.gz"
    if not archive.exists():
        only_source = ["--progress-bar=off", "--no-deps", "--no-binary=:all:", f"--dest={work}"]
        run([*pip, "download", *only_source, PACKAGE])
    if hashlib.sha256(archive.read_bytes()).hexdigest() != _SHA256:
        raise NotBuilt(f"{archive.name} is not the file whose digest is pinned")
    source = work / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    if not source.exists():
        run(["tar", "--extract", "--gzip", f"--directory={work}", f"--file={archive}"])
    _mend_tiles(source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
    options = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
    ninja = f"-DCMAKE_MAKE_PROGRAM={folder / 'bin' / 'ninja'}"
    cmake = str(folder / "bin" / "cmake")
    run([cmake, "-G", "Ninja", "-S", str(source), "-B", str(work / "build"), ninja, *options])
    _build(folder, "llama", run)
    only_python = ["-C", "cmake.define.LLAMA_BUILD=OFF", "-C", "cmake.define.LLAVA_BUILD=OFF"]
    run([*pip, "install", "--progress-bar=off", "--no-deps", *only_python, str(archive)])
    packages = next((folder / "lib").glob("python3*/site-packages/llama_cpp"))
    (packages / "lib").mkdir(exist_ok=True)
    for library in (work / "build" / "bin").glob("lib*.so*"):
        shutil.copy2(library, packages / "lib" / library.name, follow_symlinks=True)


def build_server(folder: Path, run: Run) -> None:
    """The server, in the tree of the library that `build_library` made."""
    _build(folder, "llama-server", run)


def _build(folder: Path, target: str, run: Run) -> None:
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    cmake = ["nice", str(folder / "bin" / "cmake"), "--build", str(folder / "source" / "build")]
    run([*cmake, "--target", target, "--parallel", jobs])


def _mend_tiles(source: Path) -> None:
    """With GCC 12 the intrinsic reads 8 bytes of 64: the others are never stored, and a processor with AMX traps.

    Raises NotBuilt where the line is not found.
    """
    text = source.read_text(encoding="utf-8")
    asm = '__asm__ volatile("ldtilecfg %0" : : "m"(tc));'
    if asm in text:
        return
    intrinsic = "_tile_loadconfig(&tc);"
    if intrinsic not in text:
        raise NotBuilt(f"{source.name} has no {intrinsic!r}, which traps unmended where there is AMX")
    source.write_text(text.replace(intrinsic, asm), encoding="utf-8")
