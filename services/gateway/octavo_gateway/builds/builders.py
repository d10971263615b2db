"""Speaks with edge builders: finds those that live, asks for checks, follows builds, reads files.

Messages pass through unread. Knows no rows of jobs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import UUID

import grpc
import structlog

from octavo.v1 import builder_pb2_grpc
from octavo_common.errors import FailedPrecondition, Status, Unavailable
from octavo_common.jobs.builds import BuildProgress, BuildSpec
from octavo_common.jobs.model import Job, ProcessRecord
from octavo_common.rpc.errors import from_rpc_error
from octavo_common.store import ProcessStore
from octavo_gateway.builds import convert
from octavo_gateway.channels import ChannelPool

log = structlog.get_logger(__name__)

ROLE = "edge_builder"
CHECK_TIMEOUT_S = 5.0
# A builder that restarts is seen again soon; one that was never there is not waited for.
REMEMBER_S = 600.0
# Say nothing of the build: the builder is away, or older than this gateway.
_NO_ANSWER = (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.UNIMPLEMENTED, Status.CANCELLED)


class BuildMoved(Exception):
    """The builder does not have the build under this fence."""


class BuilderPool:
    """The edge builders that the table of processes knows."""

    def __init__(self, processes: ProcessStore, channels: ChannelPool) -> None:
        self._processes, self._channels = processes, channels

    async def check(self, spec: BuildSpec) -> None:
        """Have a builder look at what is asked for; if none answers, the build itself will tell.

        Raises:
            OctavoError: A builder has something against it; FailedPrecondition when there has been none for long.
        """
        seen = await self._processes.list(ROLE, max_age_s=REMEMBER_S)
        if not seen:
            raise FailedPrecondition(
                "no edge builder runs on this platform",
                code="NO_EDGE_BUILDER",
                hint="`octavo up --edge-builders 1` starts one",
            )
        for builder in (one for one in seen if one.alive and not one.draining):
            try:
                with self._channels.use(builder.address) as channel:
                    stub = builder_pb2_grpc.BuilderServiceStub(channel)
                    await stub.CheckBuild(convert.check_request(spec), timeout=CHECK_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                told = from_rpc_error(error)
                if told.status not in _NO_ANSWER:
                    raise told from error
                log.warning("builder.no_check", address=builder.address, error=told.message)
            else:
                return

    async def targets(self) -> dict[str, list[str]]:
        """What can be built for: targets by name, with what each lacks where it lacks least."""
        found: dict[str, list[str]] = {}
        for builder in await self._alive():
            for name, missing in dict(builder.capacity.get("targets", {})).items():
                if name not in found or len(missing) < len(found[name]):
                    found[name] = list(missing)
        return dict(sorted(found.items()))

    async def progress(self) -> dict[tuple[str, int], BuildProgress]:
        """How far the builds are that run, by job and fence, as the last heartbeats have told."""
        told = [dict(builder.load.get("build") or {}) for builder in await self._alive()]
        return {
            (build["job"], build["fence"]): BuildProgress.from_json(build["progress"])
            for build in told
            if build.get("progress")
        }

    async def follow(self, job: Job) -> AsyncGenerator[Any, None]:
        """What the builder tells of a build that runs, until it has ended.

        Raises:
            BuildMoved: The builder does not have it (any more).
            Unavailable: The builder does not answer.
        """
        address = next((one.address for one in await self._processes.list(ROLE) if one.id == job.worker_id), "")
        if not address:
            raise Unavailable(f"the builder of build {job.id} is not known")
        with self._channels.use(address) as channel:
            call: Any = builder_pb2_grpc.BuilderServiceStub(channel).FollowBuild(convert.follow_request(job))
            try:
                async for message in call:
                    if message.WhichOneof("event") == "ended":
                        return
                    yield message
            except grpc.aio.AioRpcError as error:
                told = from_rpc_error(error)
                if told.status in (Status.ABORTED, Status.NOT_FOUND):
                    raise BuildMoved from error
                raise Unavailable(f"the builder of build {job.id} does not answer: {told.message}") from error
            finally:
                call.cancel()

    async def read(
        self, job_id: UUID, store: str, names: Sequence[str], first_offset: int
    ) -> AsyncGenerator[Any, None]:
        """The pieces of files that a builder has which uses this directory.

        Raises:
            OctavoError: NotFound, if it does not have them; Unavailable while no such builder lives.
        """
        holder = next((one for one in await self._alive() if one.capacity.get("store") == store), None)
        if holder is None:
            raise Unavailable(
                f"the edge builder that has the files of build {job_id} does not run",
                code="BUILDER_AWAY",
                hint="they can be downloaded when it runs again",
                retry_after_s=1.0,
            )
        with self._channels.use(holder.address) as channel:
            stub = builder_pb2_grpc.BuilderServiceStub(channel)
            call: Any = stub.ReadBuildFiles(convert.read_request(job_id, names, first_offset))
            try:
                async for message in call:
                    yield message.chunk
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
            finally:
                call.cancel()

    async def _alive(self) -> list[ProcessRecord]:
        alive = [builder for builder in await self._processes.list(ROLE) if builder.alive]
        self._channels.keep_only({builder.address for builder in alive})
        return alive
