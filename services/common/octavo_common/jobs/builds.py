"""What a job of the kind `edge_build` asks for and what it brings, as stored. Pure values with a JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

# Of builds that say nothing else.
RECIPE, CONTEXT_LENGTH, ARS = "w8a16", 512, (128, 1)
# Fields of a stored BuildSpec that may be large: megabytes each, of which a list would have a thousand.
LARGE_FIELDS = ("recipe_texts", "recipe_yaml", "options", "target_options")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """What is to be built (column `payload`, without the model: that has a column of its own)."""

    model: str
    targets: tuple[str, ...]
    # A preset's name; empty: recipe_yaml has the recipe.
    recipe: str = RECIPE
    recipe_yaml: str = ""
    # Texts that recipe_yaml names, by their names in it.
    recipe_texts: Mapping[str, str] = field(default_factory=lambda: {})
    # Longest sequence in tokens.
    context_length: int = CONTEXT_LENGTH
    # Numbers of new tokens that a graph is built for, largest first.
    ars: tuple[int, ...] = ARS
    # Options of the builder's command line, without dashes, and of the tool-chains: key, or target.key.
    options: Mapping[str, str] = field(default_factory=lambda: {})
    target_options: Mapping[str, str] = field(default_factory=lambda: {})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "targets": list(self.targets), "ars": list(self.ars)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildSpec:
        """Inverse of to_json; what retention has removed is empty, unknown fields of a newer writer are ignored."""
        known: dict[str, Any] = {k: v for k, v in value.items() if k in cls.__slots__}
        known["targets"], known["ars"] = tuple(known["targets"]), tuple(known.get("ars", ARS))
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far the running stage is: `done` of `total` steps."""

    stage: str
    done: int = 0
    total: int = 0
    # What it does now, for example "layer 3".
    what: str = ""
    num_stages_done: int = 0
    # Since the builder took it.
    elapsed_s: float = 0.0
    # That the stage is for; empty: all of them.
    target: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildProgress:
        """Inverse of to_json."""
        return cls(**{k: v for k, v in value.items() if k in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildGate:
    """A limit of one metric, as text, and how it stands. Advisory: beyond it is only a warning."""

    limit: str
    value: float | None
    passes: bool
    advisory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLoss:
    """What a tensor lost: signal to noise in decibels."""

    tensor: str
    sqnr_db: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStage:
    """A stage that has ended. Of a cached one the figures are of the time when it was made."""

    stage: str
    cached: bool
    seconds: float
    size_bytes: int
    peak_memory_bytes: int
    # Keys end in their unit.
    metrics: Mapping[str, float] = field(default_factory=lambda: {})
    gates: tuple[BuildGate, ...] = ()
    warnings: tuple[str, ...] = ()
    # The tensors that lost most, worst first.
    worst: tuple[TensorLoss, ...] = ()
    # That the stage was for; empty: all of them.
    target: str = ""
    # It was kept, and found damaged.
    replaced: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is infinite is a word."""
        return cast(dict[str, Any], _finite(asdict(self)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildStage:
        """Inverse of to_json."""
        return cls(
            stage=value["stage"],
            cached=value["cached"],
            seconds=float(value["seconds"]),
            size_bytes=int(value["size_bytes"]),
            peak_memory_bytes=int(value["peak_memory_bytes"]),
            metrics={name: float(number) for name, number in value["metrics"].items()},
            gates=tuple(_gate(gate) for gate in value["gates"]),
            warnings=tuple(value["warnings"]),
            worst=tuple(TensorLoss(tensor=loss["tensor"], sqnr_db=float(loss["sqnr_db"])) for loss in value["worst"]),
            target=value.get("target", ""),
            replaced=value.get("replaced", False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFile:
    """One file of a finished build: its name relative to the whole, with slashes, and the sha256 of its bytes."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What a build brought (column `result`); of a failed one as far as it came."""

    # As in the build's report.
    outcome: str
    # Of the attempt that ended it.
    seconds: float
    # Names the directory that has the files: any builder that uses it can hand them out.
    store: str
    stages: tuple[BuildStage, ...] = ()
    files: tuple[BuildFile, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "outcome": self.outcome,
            "seconds": self.seconds,
            "store": self.store,
            "stages": [stage.to_json() for stage in self.stages],
            "files": [asdict(file) for file in self.files],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildResult:
        """Inverse of to_json; files are empty once retention has removed them."""
        return cls(
            outcome=value["outcome"],
            seconds=float(value["seconds"]),
            store=value["store"],
            stages=tuple(BuildStage.from_json(stage) for stage in value["stages"]),
            files=tuple(BuildFile(**file) for file in value.get("files", ())),
        )


def _gate(value: Mapping[str, Any]) -> BuildGate:
    measured = value["value"]
    return BuildGate(
        limit=value["limit"],
        value=None if measured is None else float(measured),
        passes=value["passes"],
        advisory=value["advisory"],
    )


def _finite(value: Any) -> Any:
    """The value without the floats that JSON lacks: `float` reads their words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
    return value
