"""Finished builds on the disk, by the ids of their jobs, with the sha256 of every file. Knows no jobs, and no network.

Each attempt has a folder that no other touches, named by its fence: one that has lost its lease, and does not know it
yet, works on beside the next. In it ``files`` is what was delivered, ``files.json`` lists it, and appears after all of
it is there; ``work`` is what a build needs while it runs. The directory has a name of its own, under which any builder
finds it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from uuid import UUID, uuid4

from octavo_common.errors import InvalidArgument, NotFound
from octavo_common.jobs.builds import BuildFile, BuildSpec
from octavo_edge.artifacts import file_digest
from octavo_edge.deliver import tree
from octavo_edge.serving.orders import RECIPE_FILE, Folders
from octavo_edge.store import to_disk, told_when_full

CHUNK_BYTES = 256 * 1024
_LIST, _STORE_ID = "files.json", "store_id"


class Library:
    """The builds of one directory. All methods block; several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self._root, self._builds = root, root / "builds"
        with told_when_full(root, "the builds"):
            self._builds.mkdir(parents=True, exist_ok=True)
        self.id = self._name()

    def folders(self, job_id: UUID, fence: int, data_dir: Path) -> Folders:
        """Where an attempt works."""
        return Folders(data_dir=data_dir.absolute(), store=self._root, out=self._attempt(job_id, fence) / "files")

    def open(self, job_id: UUID, fence: int, spec: BuildSpec) -> Path:
        """Make room for an attempt, and write what was sent with it.

        Returns the recipe's file.

        Raises:
            NoSpace: The disk is full.
        """
        work = self._attempt(job_id, fence) / "work"
        with told_when_full(self._root, "a build"):
            shutil.rmtree(work.parent, ignore_errors=True)
            work.mkdir(parents=True)
            for name, text in {RECIPE_FILE: spec.recipe_yaml, **spec.recipe_texts}.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).write_text(text, encoding="utf-8")
        return work / RECIPE_FILE

    def close(self, job_id: UUID, fence: int) -> tuple[BuildFile, ...]:
        """List what an attempt has left: the whole, or the report of a failed one; reads every byte.

        Raises:
            NoSpace: The disk is full.
        """
        folder = self._attempt(job_id, fence)
        made, failed = folder / "files", folder / "files-failed"
        if not made.is_dir() and failed.is_dir():
            with contextlib.suppress(FileNotFoundError):
                failed.rename(made)
        files = tuple(
            BuildFile(name=name, size_bytes=path.stat().st_size, sha256=file_digest(path))
            for name, path in tree(made).items()
        )
        if files:
            partial = folder / f".{_LIST}.{os.getpid()}"
            with told_when_full(self._root, "a build"):
                partial.write_text(json.dumps([asdict(file) for file in files]))
                to_disk(partial)
                partial.rename(folder / _LIST)
                to_disk(folder)
        shutil.rmtree(folder / "work", ignore_errors=True)
        return files

    def drop_attempt(self, job_id: UUID, fence: int) -> None:
        """Remove what one attempt has left."""
        shutil.rmtree(self._attempt(job_id, fence), ignore_errors=True)

    def keep_only(self, job_id: UUID, fence: int) -> None:
        """Remove what other attempts have left at a build that has ended under this fence."""
        for attempt in self._attempts(job_id):
            if attempt != fence:
                self.drop_attempt(job_id, attempt)

    def drop(self, job_id: UUID) -> None:
        """Remove all of a build."""
        shutil.rmtree(self._builds / str(job_id), ignore_errors=True)

    def jobs(self) -> list[UUID]:
        """The builds that have a folder here."""
        found: list[UUID] = []
        for path in self._builds.iterdir():
            with contextlib.suppress(ValueError):
                found.append(UUID(path.name))
        return found

    def files(self, job_id: UUID, names: Collection[str] = ()) -> list[BuildFile]:
        """What a build can hand out, or those of these names, in their order.

        Raises:
            NotFound: It is not here (any more), or has no file of such a name.
        """
        try:
            listed = json.loads((self._delivered(job_id) / _LIST).read_text())
        except FileNotFoundError:
            raise NotFound(f"the files of build {job_id} are not here", hint="they are kept for a time only") from None
        files = {entry["name"]: BuildFile(**entry) for entry in listed}
        if unknown := [name for name in names if name not in files]:
            raise NotFound(
                f"build {job_id} has no file {unknown[0]!r}", hint=f"it has {', '.join(files)}"[:500], param="names"
            )
        return [files[name] for name in names] if names else list(files.values())

    def chunks(
        self, job_id: UUID, files: Sequence[BuildFile], first_offset: int
    ) -> Iterator[tuple[BuildFile, int, bytes]]:
        """The files piece by piece: the file, where the piece begins in it, and its bytes.

        Raises:
            InvalidArgument: The first file is shorter than where it should begin.
            NotFound: A file was removed meanwhile.
        """
        if files and not 0 <= first_offset <= files[0].size_bytes:
            raise InvalidArgument(f"{files[0].name} has {files[0].size_bytes} bytes", param="first_offset")
        for file in files:
            offset, first_offset = first_offset, 0
            try:
                stream = (self._delivered(job_id) / "files" / file.name).open("rb")
            except FileNotFoundError:
                raise NotFound(f"the files of build {job_id} are not here any more") from None
            with stream:
                stream.seek(offset)
                while True:
                    data = stream.read(CHUNK_BYTES)
                    # An empty file has one piece, too: else nobody would know of it.
                    if data or offset == file.size_bytes == 0:
                        yield file, offset, data
                    offset += len(data)
                    if not data:
                        break

    def _attempt(self, job_id: UUID, fence: int) -> Path:
        return self._builds / str(job_id) / str(fence)

    def _attempts(self, job_id: UUID) -> list[int]:
        """Fences of the attempts that have a folder here, the newest first."""
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in (self._builds / str(job_id)).iterdir()]
            return sorted((int(name) for name in names if name.isdecimal()), reverse=True)
        return []

    def _delivered(self, job_id: UUID) -> Path:
        """The folder of the attempt that ended the build: of those that have a list the newest, as fences go up."""
        for fence in self._attempts(job_id):
            if (self._attempt(job_id, fence) / _LIST).is_file():
                return self._attempt(job_id, fence)
        raise FileNotFoundError(str(job_id))

    def _name(self) -> str:
        """The directory's own name, given to it by the first who uses it."""
        path, partial = self._root / _STORE_ID, self._root / f".{_STORE_ID}.{os.getpid()}"
        with told_when_full(self._root, "the builds"):
            if not path.exists():
                partial.write_text(str(uuid4()))
                to_disk(partial)
                with contextlib.suppress(FileExistsError):
                    os.link(partial, path)
                partial.unlink()
                to_disk(self._root)
            return path.read_text().strip()
