"""Protobuf messages of builds to values and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from octavo.v1 import builder_pb2
from octavo_common.jobs.builds import BuildProgress, BuildResult, BuildSpec
from octavo_common.jobs.model import Job
from octavo_common.rpc import builds
from octavo_gateway import convert
from octavo_gateway.builds.validation import RawBuild
from octavo_gateway.convert_request import seconds

# --- what callers send


def raw_build(request: builder_pb2.SubmitBuildRequest) -> RawBuild:
    """What the caller wrote, unchecked."""
    spec = request.spec
    is_text = spec.WhichOneof("recipe") == "recipe_yaml"
    return RawBuild(
        model=spec.model,
        targets=list(spec.targets),
        recipe=spec.recipe_preset,
        recipe_yaml=spec.recipe_yaml if is_text else None,
        recipe_texts=dict(spec.recipe_texts),
        context_length=spec.context_length,
        ars=list(spec.ars),
        options=dict(spec.options),
        target_options=dict(spec.target_options),
        idempotency_key=request.idempotency_key,
        timeout_s=seconds(request.timeout) if request.HasField("timeout") else None,
        priority=request.priority,
    )


# --- what builders get


def check_request(spec: BuildSpec) -> builder_pb2.CheckBuildRequest:
    """Ask for a check."""
    return builder_pb2.CheckBuildRequest(spec=_spec(spec, with_texts=True))


def follow_request(job: Job) -> builder_pb2.FollowBuildRequest:
    """Ask to be told of a build."""
    return builder_pb2.FollowBuildRequest(job_id=str(job.id), fence=job.fence)


def read_request(job_id: UUID, names: Sequence[str], first_offset: int) -> builder_pb2.ReadBuildFilesRequest:
    """Ask for files."""
    return builder_pb2.ReadBuildFilesRequest(job_id=str(job_id), names=names, first_offset=first_offset)


# --- what callers get


def build(job: Job, progress: BuildProgress | None = None) -> builder_pb2.Build:
    """A build as a message; the job has no result of a generation."""
    message = builder_pb2.Build(
        job=convert.job(job), spec=_spec(BuildSpec.from_json({"targets": (), **job.payload, "model": job.model}))
    )
    if progress is not None:
        message.progress.CopyFrom(builds.progress(progress))
    if job.result is not None:
        message.result.CopyFrom(_result(BuildResult.from_json(job.result)))
    return message


def watched(event: Job | Any) -> builder_pb2.WatchBuildResponse:
    """An event of a watch: a change of the job, or what its builder has told."""
    if isinstance(event, Job):
        return builder_pb2.WatchBuildResponse(build=build(event))
    if event.WhichOneof("event") == "progress":
        return builder_pb2.WatchBuildResponse(progress=event.progress)
    return builder_pb2.WatchBuildResponse(stage=event.stage)


def targets(found: Mapping[str, Sequence[str]]) -> builder_pb2.ListTargetsResponse:
    """Targets with what they lack."""
    return builder_pb2.ListTargetsResponse(
        targets=[builder_pb2.BuildTarget(name=name, missing=missing) for name, missing in found.items()]
    )


def _spec(value: BuildSpec, *, with_texts: bool = False) -> builder_pb2.BuildSpec:
    message = builder_pb2.BuildSpec(
        model=value.model,
        targets=value.targets,
        context_length=value.context_length,
        ars=value.ars,
        options=value.options,
        target_options=value.target_options,
        recipe_texts=value.recipe_texts if with_texts else {},
    )
    if value.recipe:
        message.recipe_preset = value.recipe
    else:
        message.recipe_yaml = value.recipe_yaml
    return message


def _result(value: BuildResult) -> builder_pb2.BuildResult:
    return builder_pb2.BuildResult(
        outcome=value.outcome,
        duration=builds.duration(value.seconds),
        stages=map(builds.stage, value.stages),
        files=[
            builder_pb2.BuildFile(name=file.name, size_bytes=file.size_bytes, sha256=file.sha256)
            for file in value.files
        ],
    )
