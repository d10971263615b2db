"""Turns the name of a model into its files, as workers do: a path, or a name that Octavo can fetch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo_common.models.catalog import CATALOG
from octavo_common.models.fetch import fetch, models_dir
from octavo_edge.stage import Cancellation, Progress

_MB = 10**6


def located(model: str, data_dir: Path, cancellation: Cancellation, on_progress: Callable[[Progress], None]) -> Path:
    """The file or directory of a model; one that the catalogue knows is fetched if it is not in the data directory.

    What is neither is taken as a path, whose reader says what is wrong with it.

    Raises:
        OctavoError: It cannot be fetched, or the disk is full.
    """
    if model in CATALOG and not Path(model).exists():

        def on_bytes(done: int, total: int | None) -> None:
            cancellation.check()
            on_progress(Progress(stage="fetch", done=done // _MB, total=(total or 0) // _MB, what="megabytes"))

        return fetch(model, data_dir=data_dir, progress=on_bytes).path
    named = models_dir(data_dir) / model
    return _weights(named if not Path(model).exists() and model and named.is_dir() else Path(model))


def _weights(path: Path) -> Path:
    """A directory that is only the place of one GGUF file stands for that file."""
    if not path.is_dir() or (path / "config.json").exists():
        return path
    files = sorted(path.glob("*.gguf"))
    return files[0] if len(files) == 1 else path
