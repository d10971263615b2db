"""What all targets answer alike: the version that is installed, and that there is no binary. Knows no tool-chain."""

from __future__ import annotations

import importlib.metadata
import shutil
from contextlib import suppress
from pathlib import Path

from octavo_edge.target import CompileResult, Unavailable

__all__ = ["installed_version", "unavailable"]


def installed_version(package: str) -> str:
    """Of an installed package, without importing it; empty if it is not there."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def unavailable(out: Path, why: str) -> CompileResult:
    """No binary, and why. What was written into ``out`` until then is removed."""
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return CompileResult(outcome=Unavailable(why))
