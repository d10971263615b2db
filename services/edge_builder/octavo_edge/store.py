"""Keeps artifacts: directories under the digest that names them, whole or not at all. Knows no stage.

``objects/<digest>`` holds ``files/`` (the artifact), ``report.json`` and ``manifest.json`` with the sha256 of every
file; ``drafts/`` what is being written; ``locks/`` who uses what. A draft takes its final name by one rename after all
of it is on the disk, so a killed process or a full disk leaves a draft at most, and the next one removes it. What a
disk has damaged since is recognised when it is read, or at once where a file is missing or of another size; it is
removed, and made again when it is asked for.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_common import space
from octavo_common.clock import Clock
from octavo_common.errors import FailedPrecondition
from octavo_edge.artifacts import file_digest
from octavo_edge.locks import NamedLocks

_MANIFEST, _REPORT, _FILES = "manifest.json", "report.json", "files"
_DIGEST = re.compile("[0-9a-f]{64}")


class StoreUnusable(FailedPrecondition):
    """Nothing can be kept at the store's place."""

    code = "STORE_UNUSABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One artifact as it is kept: ``path`` is its directory, ``report`` the JSON that was kept with it."""

    digest: str
    kind: str
    path: Path
    report: Mapping[str, Any]
    size_bytes: int
    used_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Room for an artifact that is being made: ``files`` becomes it, ``scratch`` is thrown away.

    ``replaces`` says that there was one of this name, which was damaged.
    """

    digest: str
    folder: Path
    replaces: bool = False

    @property
    def files(self) -> Path:
        """What will be kept."""
        return self.folder / "entry" / _FILES

    @property
    def scratch(self) -> Path:
        """What will not."""
        return self.folder / "scratch"


class ArtifactStore:
    """A directory of artifacts that several processes may use at once."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root, self._clock = root, clock
        self._objects, self._drafts = root / "objects", root / "drafts"
        try:
            with told_when_full(root, "the artifact store"):
                for folder in (self._objects, self._drafts, root / "locks"):
                    folder.mkdir(parents=True, exist_ok=True)
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise StoreUnusable(f"the artifact store {root} cannot be used: {error.strerror}") from error
        self._locks = NamedLocks(root / "locks")
        self._damaged: set[str] = set()
        self.collect_leftovers()
        self.collect_damaged()

    @property
    def num_damaged(self) -> int:
        """Artifacts that were found damaged, and removed, through this object."""
        return len(self._damaged)

    @contextmanager
    def reading(self, digest: str, pause: Callable[[], None]) -> Iterator[Entry | None]:
        """The artifact, if it is here and whole; it stays while the context is open."""
        with self._locks.hold(digest, shared=True, pause=pause):
            entry = self._load(digest)
            if entry is not None:
                os.utime(self._objects / digest, (self._clock.time(), self._clock.time()))
            yield entry

    @contextmanager
    def writing(self, digest: str, pause: Callable[[], None]) -> Iterator[Draft | None]:
        """A draft to be given to ``keep``; None if another process made the artifact while this one waited for it.

        What is damaged under that name is removed.
        """
        with self._locks.hold(digest, pause=pause):
            if self._load(digest) is not None:
                yield None
                return
            if self._remove(digest):
                self._damaged.add(digest)
            draft = Draft(digest=digest, folder=self._drafts / digest, replaces=digest in self._damaged)
            shutil.rmtree(draft.folder, ignore_errors=True)
            try:
                with told_when_full(self._root, "an artifact"):
                    draft.files.mkdir(parents=True)
                    draft.scratch.mkdir()
                    yield draft
            finally:
                shutil.rmtree(draft.folder, ignore_errors=True)

    def has(self, digest: str) -> bool:
        """Whether there is an artifact of that name, whole or damaged."""
        return (self._objects / digest / _MANIFEST).is_file()

    def keep(self, draft: Draft, *, kind: str, report: Mapping[str, Any]) -> None:
        """Give a complete draft its final name."""
        entry = draft.files.parent
        with told_when_full(self._root, "an artifact"):
            (entry / _REPORT).write_text(json.dumps(report, indent=1))
            files = {str(path.relative_to(entry)): path for path in sorted(entry.rglob("*")) if not path.is_dir()}
            assert not any(path.is_symlink() for path in files.values()), "an artifact holds its own files"
            listed = {name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for name, path in files.items()}
            manifest = {"digest": draft.digest, "kind": kind, "files": listed}
            (entry / _MANIFEST).write_text(json.dumps(manifest, indent=1))
            for path in (*files.values(), entry / _MANIFEST):
                path.chmod(0o444)
                to_disk(path)
            for folder in (*(path for path in entry.rglob("*") if path.is_dir()), entry):
                to_disk(folder)
            entry.rename(self._objects / draft.digest)
            to_disk(self._objects)

    def size_of(self, draft: Draft) -> int:
        """Bytes of the files of a draft."""
        return sum(path.stat().st_size for path in draft.files.rglob("*") if path.is_file())

    def entries(self) -> list[Entry]:
        """What is kept, least recently used first; sizes are the manifests', contents are not read."""
        found: list[Entry] = []
        for path in self._objects.iterdir():
            with suppress(OSError):  # what cannot be read now is not listed
                if (entry := _undamaged(lambda name=path.name: self._parse(name)[0])) is not None:
                    found.append(entry)
        return sorted(found, key=lambda entry: entry.used_at_s)

    def collect(self, max_bytes: int) -> list[Entry]:
        """Remove what was used least recently until at most that much is left; what is in use stays.

        Returns what was removed.
        """
        entries = self.entries()
        total, removed = sum(entry.size_bytes for entry in entries), []
        for entry in entries:
            if total <= max_bytes:
                break
            with self._locks.try_hold(entry.digest) as free:
                if free:
                    self._remove(entry.digest)
                    total -= entry.size_bytes
                    removed.append(entry)
        return removed

    def collect_leftovers(self) -> list[str]:
        """Remove the drafts of processes that died; returns their digests."""
        removed: list[str] = []
        for folder in list(self._drafts.iterdir()):
            digest = folder.name.partition(".")[0]
            with self._locks.try_hold(digest) as free:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(digest)
        return removed

    def collect_damaged(self) -> list[str]:
        """Remove what is seen to be damaged without reading it all; returns the digests. What is in use stays."""
        removed: list[str] = []
        for digest in [path.name for path in self._objects.iterdir() if _DIGEST.fullmatch(path.name)]:
            # A passing error (too many open files) is no damage.
            with suppress(OSError), self._locks.try_hold(digest) as free:
                if free and self._load(digest, read=False) is None and self._remove(digest):
                    removed.append(digest)
        self._damaged.update(removed)
        return removed

    def _load(self, digest: str, *, read: bool = True) -> Entry | None:
        """The entry if every file is as its manifest says; without ``read`` all but their contents is looked at."""
        folder = self._objects / digest

        def find() -> Entry | None:
            entry, listed = self._parse(digest)
            present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()} - {_MANIFEST}
            whole = present == set(listed) and all(
                (folder / name).stat().st_size == facts["bytes"]
                and (not read or file_digest(folder / name) == facts["sha256"])
                for name, facts in listed.items()
            )
            return entry if whole else None

        return _undamaged(find)

    def _parse(self, digest: str) -> tuple[Entry, Mapping[str, Any]]:
        """What a manifest says: the entry, and its files by their names."""
        folder = self._objects / digest
        manifest = json.loads((folder / _MANIFEST).read_text())
        entry = Entry(
            digest=digest,
            kind=manifest["kind"],
            path=folder / _FILES,
            report=json.loads((folder / _REPORT).read_text()),
            size_bytes=sum(facts["bytes"] for facts in manifest["files"].values()),
            used_at_s=folder.stat().st_mtime,
        )
        return entry, manifest["files"]

    def _remove(self, digest: str) -> bool:
        """Take the name away by one rename, so that nobody sees half of it, then the files. False: there was none."""
        gone = self._drafts / f"{digest}.gone"
        shutil.rmtree(gone, ignore_errors=True)
        try:
            (self._objects / digest).rename(gone)
        except FileNotFoundError:
            return False
        shutil.rmtree(gone, ignore_errors=True)
        return True


def _undamaged(find: Callable[[], Entry | None]) -> Entry | None:
    """What is found; None, to be built again, if files are gone, garbled or unreadable.

    Raises:
        OSError: They cannot be looked at now, which says nothing of them: no rights, too many open files.
    """
    try:
        return find()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            raise
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def told_when_full(folder: Path, what: str, *, option: str = "--store") -> Iterator[None]:
    """Name a full disk as what it is, whichever library met it; ``option`` is what chooses another."""
    try:
        yield
    except space.NoSpace:
        raise
    except Exception as error:
        # Libraries in other languages tell of it in words only.
        if not (space.says_full(error) or space.says_full(str(error))):
            raise
        full = space.no_space(folder, None, what)
        raise space.NoSpace(full.message, hint=f"free some, or choose another disk with {option}") from error


def to_disk(path: Path) -> None:
    """Wait until a file, or a directory's names, cannot be lost by a crash of the machine."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
