"""Protobuf messages to values and back."""

from __future__ import annotations

from uuid import UUID

from google.protobuf.duration_pb2 import Duration

from octavo.v1 import builder_pb2
from octavo_common.errors import InvalidArgument
from octavo_common.jobs.builds import ARS, CONTEXT_LENGTH, RECIPE, BuildFile, BuildProgress, BuildSpec, BuildStage


def job_id(text: str) -> UUID:
    """A job id. Raises InvalidArgument."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidArgument(f"{text[:64]!r} is no job id", param="job_id") from None


def spec(message: builder_pb2.BuildSpec) -> BuildSpec:
    """What is to be built; what is not said gets its default."""
    is_text = message.WhichOneof("recipe") == "recipe_yaml"
    return BuildSpec(
        model=message.model,
        targets=tuple(message.targets),
        recipe="" if is_text else message.recipe_preset or RECIPE,
        recipe_yaml=message.recipe_yaml,
        recipe_texts=dict(message.recipe_texts),
        context_length=message.context_length or CONTEXT_LENGTH,
        ars=tuple(sorted(message.ars, reverse=True)) or ARS,
        options=dict(message.options),
        target_options=dict(message.target_options),
    )


def event(value: BuildProgress | BuildStage) -> builder_pb2.FollowBuildResponse:
    """What is told of a running build."""
    if isinstance(value, BuildProgress):
        return builder_pb2.FollowBuildResponse(progress=_progress(value))
    return builder_pb2.FollowBuildResponse(stage=_stage(value))


def chunk(file: BuildFile, offset: int, data: bytes) -> builder_pb2.FileChunk:
    """A piece of a file."""
    told = builder_pb2.BuildFile(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
    return builder_pb2.FileChunk(file=told, offset=offset, data=data)


def _progress(value: BuildProgress) -> builder_pb2.BuildProgress:
    return builder_pb2.BuildProgress(
        stage=value.stage,
        done=value.done,
        total=value.total,
        what=value.what,
        num_stages_done=value.num_stages_done,
        elapsed=_duration(value.elapsed_s),
    )


def _stage(value: BuildStage) -> builder_pb2.BuildStage:
    return builder_pb2.BuildStage(
        stage=value.stage,
        cached=value.cached,
        duration=_duration(value.seconds),
        size_bytes=value.size_bytes,
        peak_memory_bytes=value.peak_memory_bytes,
        metrics=value.metrics,
        gates=[
            builder_pb2.BuildGate(limit=gate.limit, value=gate.value, passes=gate.passes, advisory=gate.advisory)
            for gate in value.gates
        ],
        warnings=value.warnings,
        worst=[builder_pb2.TensorLoss(tensor=loss.tensor, sqnr_db=loss.sqnr_db) for loss in value.worst],
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
