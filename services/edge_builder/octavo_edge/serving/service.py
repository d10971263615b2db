"""BuilderService: checks builds, tells of the one that runs, hands out what was built. Begins and ends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from octavo.v1 import builder_pb2, builder_pb2_grpc
from octavo_common.errors import OctavoError, Status
from octavo_edge.serving import convert
from octavo_edge.serving.building import Builds
from octavo_edge.serving.library import Library
from octavo_edge.serving.orders import check
from octavo_edge.serving.settings import ModelPlaces


class BuildElsewhere(OctavoError):
    """The build does not run here under this fence."""

    status, code = Status.ABORTED, "BUILD_ELSEWHERE"


class BuilderService(builder_pb2_grpc.BuilderServiceServicer):
    """For gateways. Streaming handlers are generators: instrumentation breaks the other style."""

    def __init__(self, builds: Builds, library: Library, places: ModelPlaces) -> None:
        """``places`` are where models may lie that are named by a path."""
        self._builds, self._library, self._places = builds, library, places

    async def CheckBuild(self, request: builder_pb2.CheckBuildRequest, context: Any) -> builder_pb2.CheckBuildResponse:
        """Say what is wrong with a build."""
        await asyncio.to_thread(check, convert.spec(request.spec), self._places)
        return builder_pb2.CheckBuildResponse()

    async def FollowBuild(
        self, request: builder_pb2.FollowBuildRequest, context: Any
    ) -> AsyncIterator[builder_pb2.FollowBuildResponse]:
        """Tell what is known of the running build, and what happens to it."""
        found = self._builds.following(convert.job_id(request.job_id), request.fence)
        if found is None:
            raise BuildElsewhere(f"build {request.job_id} does not run here under fence {request.fence}")
        async for event in found.follow():
            yield convert.event(event)
        yield builder_pb2.FollowBuildResponse(ended=True)

    async def ReadBuildFiles(
        self, request: builder_pb2.ReadBuildFilesRequest, context: Any
    ) -> AsyncIterator[builder_pb2.ReadBuildFilesResponse]:
        """Send files of an ended build, piece by piece."""
        job_id = convert.job_id(request.job_id)
        files = await asyncio.to_thread(self._library.files, job_id, list(request.names))
        chunks = self._library.chunks(job_id, files, request.first_offset)
        while (piece := await asyncio.to_thread(next, chunks, None)) is not None:
            yield builder_pb2.ReadBuildFilesResponse(chunk=convert.chunk(*piece))
