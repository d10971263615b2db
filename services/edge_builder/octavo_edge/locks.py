"""Locks between processes, by name: files that the kernel unlocks when their holder dies. Knows not what they guard."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class NamedLocks:
    """One lock for every name, in a directory of files. Shared by many readers, or held by one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, name: str, *, shared: bool = False, pause: Callable[[], None]) -> Iterator[None]:
        """Hold the lock, calling ``pause`` between tries: it waits a little, and raises to give up."""
        while (file := self._try(name, shared=shared)) is None:
            pause()
        try:
            yield
        finally:
            self._release(file, name)

    @contextmanager
    def try_hold(self, name: str) -> Iterator[bool]:
        """Hold the lock alone if nobody has it now; yields whether that is so."""
        file = self._try(name, shared=False)
        try:
            yield file is not None
        finally:
            if file is not None:
                self._release(file, name)

    def _try(self, name: str, *, shared: bool) -> int | None:
        path = self._folder / f"{name}.lock"
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            # The holder before may have removed the file between our open and our lock; another may lock the new one.
            if path.stat().st_ino == os.fstat(file).st_ino:
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    def _release(self, file: int, name: str) -> None:
        """Unlock, and remove the file if no other holds it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # From shared to alone is no single step: others may have put a new file there, which is theirs.
            path = self._folder / f"{name}.lock"
            if path.stat().st_ino == os.fstat(file).st_ino:
                path.unlink()
        except (BlockingIOError, FileNotFoundError):
            pass  # other readers hold it, or it is gone
        finally:
            os.close(file)
