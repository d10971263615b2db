"""The public BuildService. Thin: parse, call, convert; errors and authentication are interceptors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from octavo.v1 import builder_pb2, builder_pb2_grpc
from octavo_gateway.auth import current_principal
from octavo_gateway.builds import convert
from octavo_gateway.builds.builds import Builds
from octavo_gateway.builds.validation import validate
from octavo_gateway.convert import job_states

Context = grpc.aio.ServicerContext[Any, Any]


class BuildServicer(builder_pb2_grpc.BuildServiceServicer):
    """Builds models for devices. Streaming handlers are generators: instrumentation breaks the other style."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds

    async def SubmitBuild(
        self, request: builder_pb2.SubmitBuildRequest, context: Context
    ) -> builder_pb2.SubmitBuildResponse:
        """Accept a build."""
        job, created = await self._builds.submit(current_principal(), validate(convert.raw_build(request)))
        return builder_pb2.SubmitBuildResponse(build=convert.build(job), created=created)

    async def GetBuild(self, request: builder_pb2.GetBuildRequest, context: Context) -> builder_pb2.GetBuildResponse:
        """Read one build."""
        job, progress = await self._builds.get(current_principal(), request.id)
        return builder_pb2.GetBuildResponse(build=convert.build(job, progress))

    async def ListBuilds(
        self, request: builder_pb2.ListBuildsRequest, context: Context
    ) -> builder_pb2.ListBuildsResponse:
        """List builds, newest first."""
        page, token = await self._builds.list(
            current_principal(),
            states=job_states(request.states),
            tenant=request.tenant,
            page_size=request.page_size,
            before=request.page_token,
        )
        return builder_pb2.ListBuildsResponse(
            builds=[convert.build(job, progress) for job, progress in page], next_page_token=token
        )

    async def WatchBuild(
        self, request: builder_pb2.WatchBuildRequest, context: Context
    ) -> AsyncIterator[builder_pb2.WatchBuildResponse]:
        """Send the build now and after each change, with its progress between."""
        async with aclosing(self._builds.watch(current_principal(), request.id)) as events:
            async for event in events:
                yield convert.watched(event)

    async def DownloadBuild(
        self, request: builder_pb2.DownloadBuildRequest, context: Context
    ) -> AsyncIterator[builder_pb2.DownloadBuildResponse]:
        """Send files of an ended build."""
        pieces = self._builds.download(current_principal(), request.id, list(request.names), request.first_offset)
        async with aclosing(pieces):
            async for piece in pieces:
                yield builder_pb2.DownloadBuildResponse(chunk=piece)

    async def ListTargets(
        self, request: builder_pb2.ListTargetsRequest, context: Context
    ) -> builder_pb2.ListTargetsResponse:
        """List what can be built for."""
        return convert.targets(await self._builds.targets())
