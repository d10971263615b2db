"""Protobuf messages to values and back."""

from __future__ import annotations

from uuid import UUID

from octavo.v1 import builder_pb2
from octavo_common.errors import InvalidArgument
from octavo_common.jobs.builds import ARS, CONTEXT_LENGTH, RECIPE, BuildFile, BuildProgress, BuildSpec, BuildStage
from octavo_common.rpc import builds


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
        return builder_pb2.FollowBuildResponse(progress=builds.progress(value))
    return builder_pb2.FollowBuildResponse(stage=builds.stage(value))


def chunk(file: BuildFile, offset: int, data: bytes) -> builder_pb2.FileChunk:
    """A piece of a file."""
    told = builder_pb2.BuildFile(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
    return builder_pb2.FileChunk(file=told, offset=offset, data=data)
