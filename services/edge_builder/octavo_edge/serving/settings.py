"""The edge builder's settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from octavo_common.settings import CommonSettings


class ModelPlaces(NamedTuple):
    """Where models may lie that are named by a path: under a root (none: anywhere), and under nothing closed."""

    roots: tuple[Path, ...] = ()
    closed: tuple[Path, ...] = ()


class EdgeSettings(CommonSettings):
    """OCTAVO_EDGE_* and what all processes read."""

    model_config = SettingsConfigDict(env_prefix="OCTAVO_EDGE_", frozen=True, extra="ignore", populate_by_name=True)

    # 0 takes any free port; the process announces it.
    port: int = Field(default=0, ge=0, le=65535)
    # Name under which others reach this process; empty: what `host` says.
    advertise_host: str = ""
    # Where artifacts and finished builds are; empty: edge in the data directory. Builders of one host may share it.
    folder: Path | None = None
    # Where models may lie that callers name by their paths; with colons between. Empty: wherever the process may read.
    # What this service itself writes, and secrets, are none either way.
    model_roots: str = ""
    # Of a build; 0 takes all cores that the process may use.
    num_threads: int = Field(default=0, ge=0)
    # Notifications are only hints: so often the table is read without one.
    poll_s: float = Field(default=1.0, gt=0)
    # From the request to a build to stop until it is killed: it stops at its next step. Either way the stages that have
    # ended are kept, and nothing else.
    grace_s: float = Field(default=5.0, ge=0)
    # A build that has told nothing for so long is ended; 0 waits for ever. Tool-chains have limits of an hour of their
    # own, which say more.
    stalled_after_s: float = Field(default=5400.0, ge=0)
    # How often builds are looked for whose retention time is over.
    sweep_every_s: float = Field(default=60.0, gt=0)

    @property
    def edge_dir(self) -> Path:
        """Where artifacts and finished builds are."""
        return (self.folder or self.data_dir / "edge").absolute()

    @property
    def places(self) -> ModelPlaces:
        """Where models may lie that are named by a path."""
        return ModelPlaces(
            roots=tuple(Path(root).resolve() for root in self.model_roots.split(":") if root),
            closed=(self.edge_dir.resolve(), (self.data_dir / "secrets").resolve()),
        )

    def child_environment(self) -> dict[str, str]:
        """What a build's process gets: this one's environment without what it has no business with."""
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("OCTAVO_")}
        if self.num_threads:
            environment |= dict.fromkeys(_THREADS, str(self.num_threads))
        return environment | {"PYTHONUNBUFFERED": "1"}


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
