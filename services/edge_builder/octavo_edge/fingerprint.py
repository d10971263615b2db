"""What every result depends on besides source and settings: the builder's own code, and the libraries that it calls.

A version in each stage, to be raised by hand with its code, is forgotten sooner or later, and then a store serves what
an older builder made.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import octavo_device
import octavo_edge
from octavo_common import text
from octavo_edge.artifacts import file_digest, joined_digest

# Tokenizers decide what calibration sees, the device's feeding what graphs are given.
_FOLDERS = tuple(Path(str(module.__file__)).parent for module in (octavo_edge, text, octavo_device))
# Takes builds from the job table, and decides nothing of what they give.
_SERVING = "serving"
# Tool-chains of targets tell their version themselves.
_LIBRARIES = (
    "gguf",
    "numpy",
    "octavo",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxscript",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)


def builder_fingerprint(folders: Sequence[Path] = _FOLDERS) -> str:
    """sha256 over the Python files of the folders, by their names in them, and the libraries' versions, in hex."""
    parts: list[str] = []
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            name = file.relative_to(folder)
            if name.parts[0] != _SERVING:
                parts.append(f"{name.as_posix()}\0{file_digest(file)}")
    return joined_digest(*parts, *(f"{name}\0{_version(name)}" for name in _LIBRARIES))


def builder_versions() -> dict[str, str]:
    """Versions of the libraries that are installed, by name."""
    return {name: version for name in _LIBRARIES if (version := _version(name))}


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
