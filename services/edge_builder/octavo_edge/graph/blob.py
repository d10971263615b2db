"""``blob.json``: what of a compiled model's files is which graph, and what runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["BLOB_FILE", "Blob", "GraphFiles", "read_blob", "write_blob"]

BLOB_FILE = "blob.json"
# By part, by number of new tokens: ``file`` and, in a file that holds several graphs, ``function``; what else a loader
# has to know has keys of its own.
GraphFiles = Mapping[str, Mapping[int, Mapping[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A compiled model. Files are named relative to ``blob.json``.

    A part that has no graph is done on the host: the embedding, which is a look-up in a table. ``runtime`` is what a
    device's runner has to have; ``extra`` is what that has to know besides.
    """

    runtime: str
    graphs: GraphFiles
    files: tuple[str, ...]
    extra: Mapping[str, Any]


def write_blob(out: Path, *, runtime: str, graphs: GraphFiles, **extra: Any) -> int:
    """Write it; all other files of ``out`` are listed. Returns their bytes."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    document = {
        "runtime": runtime,
        "graphs": {part: {str(ar): dict(entry) for ar, entry in by_ar.items()} for part, by_ar in graphs.items()},
        "files": [path.relative_to(out).as_posix() for path in files],
        **extra,
    }
    (out / BLOB_FILE).write_text(json.dumps(document, indent=1) + "\n")
    return sum(path.stat().st_size for path in files)


def read_blob(folder: Path) -> Blob:
    """The inverse of ``write_blob``."""
    document = json.loads((folder / BLOB_FILE).read_text())
    graphs = {part: {int(ar): entry for ar, entry in by_ar.items()} for part, by_ar in document.pop("graphs").items()}
    return Blob(runtime=document.pop("runtime"), graphs=graphs, files=tuple(document.pop("files")), extra=document)
