"""What a stage is given and gives back: the protocol that stages implement. Knows no stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from octavo_common.clock import Clock
from octavo_common.errors import Cancelled
from octavo_edge.artifacts import Artifact
from octavo_edge.recipe import Gates
from octavo_edge.target import Target

In = TypeVar("In", bound=Artifact, contravariant=True)
Out = TypeVar("Out", bound=Artifact, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a stage is: ``done`` of ``total`` steps, and what it does now ("layer 3").

    ``target`` is the one that the stage is for; empty for stages that all share.
    """

    stage: str
    done: int
    total: int
    what: str = ""
    target: str = ""

    @property
    def title(self) -> str:
        """The stage's name, with its target's if it has one."""
        return title(self.stage, self.target)


def title(stage: str, target: str) -> str:
    """How a stage is named where there may be several targets."""
    return f"{stage} for {target}" if target else stage


class Cancellation:
    """Whether a build was told to stop; set from any thread or signal handler."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Tell the build to stop at its next check."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether it was told to stop."""
        return self._asked.is_set()

    def check(self) -> None:
        """Raise Cancelled if the build was told to stop."""
        if self._asked.is_set():
            raise Cancelled("the build was cancelled", hint="the same command goes on at the stage where it stopped")

    def wait(self, seconds: float) -> None:
        """Wait that long; raises Cancelled as soon as the build is told to stop."""
        self._asked.wait(seconds)
        self.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """What a stage has besides its source.

    ``out`` is an empty directory that becomes the artifact when the stage returns; ``scratch`` is one for what is not
    to be kept. A stage writes nowhere else. One whose result depends on the target has the target's name in its key.
    """

    stage: str
    out: Path
    scratch: Path
    target: Target
    clock: Clock
    cancellation: Cancellation
    on_progress: Callable[[Progress], None]

    def step(self, done: int, total: int, what: str = "") -> None:
        """Say how far the stage is; raises Cancelled if it has to stop. To be called at least every few seconds."""
        self.cancellation.check()
        self.on_progress(Progress(stage=self.stage, done=done, total=total, what=what))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLoss:
    """What a tensor lost by a stage: its ratio of signal to noise in decibels."""

    tensor: str
    sqnr_db: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A limit of one metric of a stage. A metric that was not measured, or is no number, does not pass.

    ``advisory`` means that a worse value is a warning in the report and stops nothing.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    advisory: bool = False

    def passes(self, value: float | None) -> bool:
        """Whether a value is within the limits."""
        if value is None or value != value:  # NaN is unequal to itself
            return False
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        limits = [(">=", self.at_least), ("<=", self.at_most)]
        return " and ".join(f"{self.metric} {sign} {limit:g}" for sign, limit in limits if limit is not None)


def gates_of(limits: Gates) -> tuple[Gate, ...]:
    """A recipe's limits as gates: ``max_mean_kl_nats`` is the most that the metric ``mean_kl_nats`` may be."""
    gates: list[Gate] = []
    for entry in fields(limits):
        value: float | None = getattr(limits, entry.name)
        bound, _, metric = entry.name.partition("_")
        if value is not None and bound == "min":
            gates.append(Gate(metric=metric, at_least=value))
        elif value is not None:
            gates.append(Gate(metric=metric, at_most=value))
    return tuple(gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutcome:
    """What a stage tells of its run. Keys of metrics end in their unit (``size_bytes``, ``logits_sqnr_db``).

    ``worst`` are the tensors that lost most, worst first. ``details`` is JSON for the report: tables by layer or by
    method.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unsupported_ops: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    worst: tuple[TensorLoss, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """One run of a stage, as it is kept beside its artifact."""

    stage: str
    kind: str
    source_digest: str
    output_digest: str
    seconds: float
    peak_rss_bytes: int
    size_bytes: int
    outcome: StageOutcome


class Stage(Protocol[In, Out]):
    """One step from artifact to artifact. The same builder, cache key and source give the same result."""

    @property
    def name(self) -> str:
        """One word, a verb: ``adapt``."""
        ...

    @property
    def output(self) -> type[Out]:
        """The kind of artifact that it makes."""
        ...

    @property
    def cache_key(self) -> str:
        """All settings that decide what it makes; not the gates. The builder's code is in every name already."""
        ...

    @property
    def gates(self) -> tuple[Gate, ...]:
        """What its metrics must hold; may change without another run of the stage."""
        ...

    def run(self, source: In, ctx: StageContext) -> StageOutcome:
        """Fill ``ctx.out`` from the source, which is only read.

        Raises:
            OctavoError: The source cannot be worked on; the message says which part of it.
            Cancelled: The build was told to stop.
        """
        ...
