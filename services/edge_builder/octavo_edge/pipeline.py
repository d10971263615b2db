"""Runs stages one after another; what was made before is not made again. Knows no stage by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from octavo_common.clock import Clock
from octavo_common.errors import OctavoError, Status
from octavo_edge.artifacts import Artifact, joined_digest
from octavo_edge.memory import PeakMemory
from octavo_edge.report import report_from_json, report_to_json
from octavo_edge.stage import Cancellation, Gate, Progress, Stage, StageContext, StageReport, title
from octavo_edge.store import ArtifactStore, Draft
from octavo_edge.target import Target

A = TypeVar("A", bound=Artifact)
B = TypeVar("B", bound=Artifact)
C = TypeVar("C", bound=Artifact)
_LOCK_TRY_S = 0.2
_NUM_NAMED = 5
_DAMAGED = "what was kept of an earlier build was damaged; it was removed and made again"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """A stage of one build: what it reported, whether that was from before, and its gates."""

    artifact: Artifact
    report: StageReport
    cached: bool
    gates: tuple[Gate, ...]
    # That the stage was for; empty: all of them.
    target: str = ""
    # It was made before, and the disk had damaged it since.
    replaced: bool = False

    @property
    def title(self) -> str:
        """The stage's name, with its target's if it has one."""
        return title(self.report.stage, self.target)

    @property
    def failed(self) -> tuple[Gate, ...]:
        """The gates that stop the build."""
        metrics = self.report.outcome.metrics
        return tuple(gate for gate in self.gates if not gate.advisory and not gate.passes(metrics.get(gate.metric)))


class GateFailed(OctavoError):
    """A stage's result is worse than its gates allow; the artifact is kept."""

    status, code = Status.FAILED_PRECONDITION, "GATE_FAILED"

    def __init__(self, run: StageRun) -> None:
        metrics, worst = run.report.outcome.metrics, run.report.outcome.worst[:_NUM_NAMED]
        told = [f"{gate} does not hold ({_measured(metrics.get(gate.metric))})" for gate in run.failed]
        if worst:
            told.append("lost most: " + ", ".join(f"{loss.tensor} ({loss.sqnr_db:.1f} dB)" for loss in worst))
        super().__init__(
            f"{run.report.stage}: {'; '.join(told)}",
            # Without its place: this is told to whoever asked for the build, also on another machine.
            hint="what was built up to it is kept; change the recipe, or its gates",
        )
        self.run = run


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run needs besides its stages and its source."""

    store: ArtifactStore
    target: Target
    clock: Clock
    cancellation: Cancellation
    on_progress: Callable[[Progress], None]
    # Called after every stage, also one that fails its gates.
    on_stage: Callable[[StageRun], None]
    # Closed by the caller when it has read what it wants: until then the artifacts stay, whoever collects garbage.
    held: ExitStack
    # Of the code that the stages are made of: another one makes everything anew.
    builder: str


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[A, B]):
    """Stages whose artifacts fit: from A to B."""

    stages: tuple[Stage[Any, Any], ...]

    def then(self, stage: Stage[B, C]) -> Pipeline[A, C]:
        """The pipeline with one stage more, which takes what this one makes."""
        return Pipeline((*self.stages, stage))

    def run(self, source: A, around: Surroundings) -> B:
        """Make the last artifact, or find it.

        Raises:
            GateFailed: A stage's result is not good enough; all up to it is kept.
            Cancelled: The build was told to stop; all stages that ended are kept.
            OctavoError: A stage cannot work on its source.
        """
        artifact: Artifact = source
        for stage in self.stages:
            around.cancellation.check()
            run = _obtain(stage, artifact, around)
            around.on_stage(run)
            if run.failed:
                raise GateFailed(run)
            artifact = run.artifact
        return artifact  # pyright: ignore[reportReturnType] - the last stage's kind is B, by how `then` is typed


def pipeline(first: Stage[A, B]) -> Pipeline[A, B]:
    """A pipeline of one stage. A function, since a static method would leave A unknown to type checkers."""
    return Pipeline((first,))


def result_digest(stage: Stage[Any, Any], source: Artifact, builder: str) -> str:
    """The name of what a stage of a builder makes of a source."""
    return joined_digest(builder, stage.name, stage.cache_key, source.digest)


def kept_stages(stages: Pipeline[Any, Any], source: Artifact, builder: str, store: ArtifactStore) -> list[str]:
    """Names of the stages whose results are in the store; what damage they have is found when they are read."""
    found: list[str] = []
    for stage in stages.stages:
        digest = result_digest(stage, source, builder)
        if store.has(digest):
            found.append(stage.name)
        source = Artifact(path=source.path, digest=digest)
    return found


def _obtain(stage: Stage[Any, Any], source: Artifact, around: Surroundings) -> StageRun:
    """The stage's result from the store, made first if it is not there."""
    digest, cached, replaced = result_digest(stage, source, around.builder), True, False

    def pause() -> None:
        around.cancellation.wait(_LOCK_TRY_S)

    while True:
        with ExitStack() as reading:
            entry = reading.enter_context(around.store.reading(digest, pause))
            if entry is not None:
                around.held.enter_context(reading.pop_all())
                break
        with around.store.writing(digest, pause) as draft:
            if draft is not None:
                cached, replaced = False, draft.replaces
                _make(stage, source, draft, around)
    report = report_from_json(entry.report)
    if replaced:
        warnings = (*report.outcome.warnings, _DAMAGED)
        report = replace(report, outcome=replace(report.outcome, warnings=warnings))
    return StageRun(
        artifact=stage.output(path=entry.path, digest=digest),
        report=report,
        cached=cached,
        gates=stage.gates,
        replaced=replaced,
    )


def _make(stage: Stage[Any, Any], source: Artifact, draft: Draft, around: Surroundings) -> None:
    context = StageContext(
        stage=stage.name,
        out=draft.files,
        scratch=draft.scratch,
        target=around.target,
        clock=around.clock,
        cancellation=around.cancellation,
        on_progress=around.on_progress,
    )
    memory, begun_s = PeakMemory.start(), around.clock.monotonic()
    outcome = stage.run(source, context)
    report = StageReport(
        stage=stage.name,
        kind=stage.output.__name__,
        source_digest=source.digest,
        output_digest=draft.digest,
        seconds=around.clock.monotonic() - begun_s,
        peak_rss_bytes=memory.peak_bytes(),
        size_bytes=around.store.size_of(draft),
        outcome=outcome,
    )
    around.cancellation.check()
    around.store.keep(draft, kind=report.kind, report=report_to_json(report))


def _measured(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"
