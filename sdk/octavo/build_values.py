"""What the SDK returns of builds for devices: plain frozen values. Durations are seconds, sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.values import Job, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far the running stage is: ``done`` of ``total`` steps, and ``what`` it does now, for example "layer 3"."""

    stage: str
    done: int
    total: int
    what: str = ""
    num_stages_done: int = 0
    # Since the builder took it.
    elapsed_s: float = 0.0
    # That the stage is for; empty for stages that all targets share.
    target: str = ""

    @property
    def title(self) -> str:
        """The stage's name, with its target's if it has one."""
        return _title(self.stage, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildGate:
    """A limit of one metric. ``value`` is None where it was not measured; advisory limits stop nothing."""

    limit: str
    value: float | None
    passes: bool
    advisory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLoss:
    """What a tensor lost by a stage: signal to noise in decibels; larger is better."""

    tensor: str
    sqnr_db: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStage:
    """A stage that has ended. Of a cached one the figures are of the time when it was made.

    Keys of ``metrics`` end in their unit; ``worst`` are the tensors that lost most, worst first.
    """

    stage: str
    cached: bool
    duration_s: float
    size_bytes: int
    peak_memory_bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    gates: tuple[BuildGate, ...] = ()
    warnings: tuple[str, ...] = ()
    worst: tuple[TensorLoss, ...] = ()
    # That the stage was for; empty for stages that all targets share.
    target: str = ""

    @property
    def title(self) -> str:
        """The stage's name, with its target's if it has one."""
        return _title(self.stage, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFile:
    """A file that can be downloaded: its name relative to the whole, with slashes, and its sha256 in hex."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What a build brought; of a failed one as far as it came. ``duration_s`` is that of its last attempt."""

    outcome: str
    duration_s: float
    stages: tuple[BuildStage, ...] = ()
    # Empty once the retention time is over.
    files: tuple[BuildFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One build for devices. ``job`` has its states, times and failure; lists leave results, recipes, options out."""

    job: Job
    model: str
    targets: tuple[str, ...]
    # A preset's name, or empty: recipe_yaml has the recipe.
    recipe: str
    recipe_yaml: str
    context_length: int
    ars: tuple[int, ...]
    options: Mapping[str, str]
    target_options: Mapping[str, str]
    # None while it waits and after its end.
    progress: BuildProgress | None
    result: BuildResult | None

    @property
    def id(self) -> str:
        """The id of its job."""
        return self.job.id

    @property
    def state(self) -> JobState:
        """Where its job stands."""
        return self.job.state


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTarget:
    """What can be built for; ``missing`` says why its tool-chain cannot work where its builder runs."""

    name: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChunk:
    """A piece of a file."""

    file: BuildFile
    offset: int
    data: bytes


BuildEvent = Build | BuildProgress | BuildStage


def _title(stage: str, target: str) -> str:
    return f"{stage} for {target}" if target else stage
