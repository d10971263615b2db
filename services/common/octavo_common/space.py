"""Says whether a disk has room, and names a full one as what it is. Knows nothing of what is written."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from octavo_common.errors import OctavoError, Status

_WORDS = tuple(os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT))


class NoSpace(OctavoError):
    """The disk has no room for what has to be written."""

    status, code = Status.RESOURCE_EXHAUSTED, "NO_SPACE"


def require(folder: Path, num_bytes: int, what: str) -> None:
    """Raise NoSpace unless the disk of ``folder``, which need not exist yet, has room for ``num_bytes``."""
    if free_bytes(folder) < num_bytes:
        raise no_space(folder, num_bytes, what)


def no_space(folder: Path, num_bytes: int | None, what: str) -> NoSpace:
    """The error for a disk that is full, with how much is free now and how much is needed, if that is known."""
    needed = f", about {_megabytes(num_bytes)} MB needed" if num_bytes else ""
    return NoSpace(
        f"no space left on the device of {folder}: {free_bytes(folder) // 1_000_000} MB free{needed} for {what}",
        hint="free some, or choose a data directory on another disk with --data-dir or OCTAVO_DATA_DIR",
    )


def free_bytes(folder: Path) -> int:
    """Room on the disk of a folder, or of the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def says_full(words: object) -> bool:
    """Whether a program's output or an error says that a disk or a quota is full."""
    if isinstance(words, OSError):
        return words.errno in (errno.ENOSPC, errno.EDQUOT)
    text = str(words).lower()
    return any(word in text for word in _WORDS)


def _megabytes(num_bytes: int) -> int:
    return -(-num_bytes // 1_000_000)
