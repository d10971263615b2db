"""How much a folder holds while others may write to it."""

from __future__ import annotations

from pathlib import Path


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # moved between listing and looking
            continue
    return total
