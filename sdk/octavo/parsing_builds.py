"""Turns messages of builds into values. Pure."""

from __future__ import annotations

from octavo import parsing
from octavo.build_values import (
    Build,
    BuildEvent,
    BuildFile,
    BuildGate,
    BuildProgress,
    BuildResult,
    BuildStage,
    BuildTarget,
    FileChunk,
    TensorLoss,
)
from octavo.v1 import builder_pb2


def build(message: builder_pb2.Build) -> Build:
    """One build."""
    spec = message.spec
    return Build(
        job=parsing.job(message.job),
        model=spec.model,
        targets=tuple(spec.targets),
        recipe=spec.recipe_preset,
        recipe_yaml=spec.recipe_yaml,
        context_length=spec.context_length,
        ars=tuple(spec.ars),
        options=dict(spec.options),
        target_options=dict(spec.target_options),
        progress=progress(message.progress) if message.HasField("progress") else None,
        result=result(message.result) if message.HasField("result") else None,
    )


def progress(message: builder_pb2.BuildProgress) -> BuildProgress:
    """How far a stage is."""
    return BuildProgress(
        stage=message.stage,
        done=message.done,
        total=message.total,
        what=message.what,
        num_stages_done=message.num_stages_done,
        elapsed_s=parsing.seconds(message.elapsed),
        target=message.target,
    )


def stage(message: builder_pb2.BuildStage) -> BuildStage:
    """A stage that has ended."""
    return BuildStage(
        stage=message.stage,
        cached=message.cached,
        duration_s=parsing.seconds(message.duration),
        size_bytes=message.size_bytes,
        peak_memory_bytes=message.peak_memory_bytes,
        metrics=dict(message.metrics),
        gates=tuple(
            BuildGate(
                limit=gate.limit,
                value=gate.value if gate.HasField("value") else None,
                passes=gate.passes,
                advisory=gate.advisory,
            )
            for gate in message.gates
        ),
        warnings=tuple(message.warnings),
        worst=tuple(TensorLoss(tensor=loss.tensor, sqnr_db=loss.sqnr_db) for loss in message.worst),
        target=message.target,
    )


def result(message: builder_pb2.BuildResult) -> BuildResult:
    """What a build brought."""
    return BuildResult(
        outcome=message.outcome,
        duration_s=parsing.seconds(message.duration),
        stages=tuple(stage(one) for one in message.stages),
        files=tuple(file(one) for one in message.files),
    )


def file(message: builder_pb2.BuildFile) -> BuildFile:
    """A file of a build."""
    return BuildFile(name=message.name, size_bytes=message.size_bytes, sha256=message.sha256)


def chunk(message: builder_pb2.FileChunk) -> FileChunk:
    """A piece of a file."""
    return FileChunk(file=file(message.file), offset=message.offset, data=message.data)


def target(message: builder_pb2.BuildTarget) -> BuildTarget:
    """What can be built for."""
    return BuildTarget(name=message.name, missing=tuple(message.missing))


def event(message: builder_pb2.WatchBuildResponse) -> BuildEvent | None:
    """An event of a watch; None for one that is newer than this SDK."""
    which = message.WhichOneof("event")
    if which == "build":
        return build(message.build)
    if which == "progress":
        return progress(message.progress)
    return stage(message.stage) if which == "stage" else None
