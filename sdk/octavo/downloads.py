"""Puts the pieces of a build's files together: a directory that appears whole, or not at all. Sends nothing."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Self

from octavo.build_values import Build, BuildEvent, BuildFile, BuildStage, FileChunk
from octavo.errors import AbortedError, InvalidArgumentError, NotFoundError

# Bytes that are here, and bytes that are to come in all.
OnBytes = Callable[[int, int], None]


def check_place(out: str | os.PathLike[str]) -> Path:
    """Where a download may go: a directory that does not exist, or is empty. Raises InvalidArgumentError."""
    path = Path(out).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidArgumentError(f"{path} exists, and is no empty directory", hint="give a new one", param="out")
    return path


class Download:
    """The files of one build on their way to a directory. Mutable; a context manager that leaves nothing behind.

    Pieces of each file come in order. After a broken connection ``left`` says what is still to be asked for.
    """

    def __init__(
        self, build: Build, out: str | os.PathLike[str], names: Sequence[str], on_bytes: OnBytes | None
    ) -> None:
        self._build = build
        self._out = check_place(out)
        self._partial = self._out.with_name(f".{self._out.name}.{os.getpid()}.partial")
        self._files = _chosen(build, names)
        self._on_bytes = on_bytes or _nothing
        self._total = sum(file.size_bytes for file in self._files)
        self._num_done = 0
        self._num_bytes = 0
        self._offset = 0
        self._stream: BinaryIO | None = None
        self._digest = hashlib.sha256()

    @property
    def files(self) -> list[BuildFile]:
        """All that are to come."""
        return list(self._files)

    def left(self) -> tuple[list[str], int] | None:
        """Names of the files that are not whole, and how much of the first is here; None when all are."""
        names = [file.name for file in self._files[self._num_done :]]
        return (names, self._offset) if names else None

    def take(self, chunk: FileChunk) -> None:
        """Write a piece. Raises AbortedError for one that does not fit, and for a file that is not as it was listed."""
        file = self._files[self._num_done] if self._num_done < len(self._files) else None
        if file is None or chunk.file.name != file.name or chunk.offset != self._offset:
            raise AbortedError(f"a piece of {chunk.file.name} came out of order", job_id=self._build.id)
        if self._stream is None:
            path = self._partial / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("wb")
        self._stream.write(chunk.data)
        self._digest.update(chunk.data)
        self._offset += len(chunk.data)
        self._num_bytes += len(chunk.data)
        self._on_bytes(self._num_bytes, self._total)
        if self._offset >= file.size_bytes:
            self._end_file(file)

    def finish(self) -> list[BuildFile]:
        """Give the directory its name."""
        assert self.left() is None
        check_place(self._out)
        for folder in (*(path for path in self._partial.rglob("*") if path.is_dir()), self._partial):
            _to_disk(folder)
        if self._out.exists():
            self._out.rmdir()
        self._partial.rename(self._out)
        _to_disk(self._out.parent)
        return self.files

    def __enter__(self) -> Self:
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir(parents=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # what could not be written is not wanted any more
                self._stream.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def _end_file(self, file: BuildFile) -> None:
        assert self._stream is not None
        self._stream.flush()
        # Before the whole gets its name: that must not be there after a crash of the machine without all of this.
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._digest.hexdigest() != file.sha256:
            raise AbortedError(
                f"{file.name} has other bytes than its builder has listed",
                hint="download it again; if that does not help, its disk has changed it: build anew",
                job_id=self._build.id,
            )
        self._stream, self._digest, self._offset = None, hashlib.sha256(), 0
        self._num_done += 1


def _chosen(build: Build, names: Sequence[str]) -> list[BuildFile]:
    listed = {file.name: file for file in build.result.files} if build.result is not None else {}
    if not listed:
        why = "has not ended" if not build.state.ended else "has no files (any more)"
        raise NotFoundError(f"build {build.id} {why}", job_id=build.id)
    for name in names or listed:
        path = PurePosixPath(name)
        if name not in listed:
            raise NotFoundError(
                f"build {build.id} has no file {name!r}", hint=f"it has {', '.join(listed)}", job_id=build.id
            )
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            # Whatever a server says: nothing is written outside of the directory.
            raise AbortedError(f"{name!r} is no name of a file", job_id=build.id)
    return [listed[name] for name in names] if names else list(listed.values())


def _to_disk(folder: Path) -> None:
    """Wait until a directory's names cannot be lost, where directories can be opened and waited for."""
    if os.name != "posix":
        return
    try:
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        # Some network file systems, and directories that may be written but not read: the files themselves are there.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def _nothing(done: int, total: int) -> None:
    pass


class NewEvents:
    """Leaves out of a watch that was broken and begun again what its reader has been told already. Mutable."""

    def __init__(self) -> None:
        self._fence: int | None = None
        self._last: Build | None = None
        self._num_told = 0
        self._num_seen = 0

    def begin(self) -> None:
        """Another connection: its builder tells of the attempt from its first stage on."""
        self._num_seen = 0

    def is_new(self, event: BuildEvent) -> bool:
        """Note an event; False if its reader knows it."""
        if isinstance(event, BuildStage):
            self._num_seen += 1
            known, self._num_told = self._num_seen <= self._num_told, max(self._num_seen, self._num_told)
            return not known
        if isinstance(event, Build):
            if event.job.fence != self._fence:
                self._fence, self._num_told, self._num_seen = event.job.fence, 0, 0
            changed, self._last = event != self._last, event
            return changed
        return True
