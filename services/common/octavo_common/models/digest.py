"""Names a checkpoint by the sha256 of its files, remembered beside them so that a restart need not read them again.

A remembered digest counts only while size and modification time are the file's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

_CHUNK = 1 << 20


def file_digest(path: Path) -> str:
    """sha256 of a file, in hex."""
    stat = path.stat()
    key = [stat.st_size, stat.st_mtime_ns]
    memory = path.with_name(f".{path.name}.sha256.json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(memory.read_text(encoding="utf-8"))
        if known["key"] == key and isinstance(known["sha256"], str):
            return known["sha256"]
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    value = digest.hexdigest()
    # The folder may be read-only: then every start reads the file.
    with contextlib.suppress(OSError):
        temporary = memory.with_name(f"{memory.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"key": key, "sha256": value}), encoding="utf-8")
        temporary.replace(memory)
    return value


def files_digest(paths: list[Path]) -> str:
    """One digest for several files: of one file its own, else over the names and digests in order."""
    if len(paths) == 1:
        return file_digest(paths[0])
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.name}\0{file_digest(path)}\n".encode())
    return digest.hexdigest()
