"""What a gateway tells of a build while its row changes, its builder does not know it yet, or there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import grpc
import pytest
from builder_world import BuilderWorld, stages

import octavo
from octavo import JobState
from octavo.v1 import builder_pb2, builder_pb2_grpc
from octavo_common import ids, store
from octavo_common.jobs.builds import BuildResult
from octavo_common.jobs.model import NewProcess
from octavo_edge.app import TARGETS

pytestmark = pytest.mark.db


class Tells(builder_pb2_grpc.BuilderServiceServicer):
    """A builder that takes what a test takes for it, and is asked for it before it knows it."""

    def __init__(self, num_early: int) -> None:
        self.process_id = ids.new_process_id()
        self.num_early, self.num_asked = num_early, 0
        self.ends = asyncio.Event()

    async def CheckBuild(self, request: Any, context: Any) -> builder_pb2.CheckBuildResponse:
        return builder_pb2.CheckBuildResponse()

    async def FollowBuild(self, request: Any, context: Any) -> AsyncIterator[builder_pb2.FollowBuildResponse]:
        self.num_asked += 1
        if self.num_asked <= self.num_early:
            await context.abort(grpc.StatusCode.ABORTED, "not here")
        yield builder_pb2.FollowBuildResponse(stage=builder_pb2.BuildStage(stage="adapt"))
        await self.ends.wait()
        yield builder_pb2.FollowBuildResponse(ended=True)


@asynccontextmanager
async def telling(world: BuilderWorld, *, num_early: int = 0) -> AsyncIterator[Tells]:
    builder, server = Tells(num_early), grpc.aio.server()
    builder_pb2_grpc.add_BuilderServiceServicer_to_server(builder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = NewProcess(id=builder.process_id, role="edge_builder", lease_s=60.0, address=f"127.0.0.1:{port}")
    await world.gateways.processes.register(process)
    try:
        yield builder
    finally:
        await server.stop(0)


async def test_a_build_is_followed_from_the_moment_it_runs_and_its_stages_told_once_whatever_changes_in_its_row(
    world: BuilderWorld,
) -> None:
    builds = store.BuildStore(world.gateways.database)
    async with telling(world, num_early=2) as builder:
        build = await world.submit()
        claimed = await builds.take(builder.process_id, lease_s=60.0)
        assert claimed is not None
        events: list[octavo.BuildEvent] = []
        told = asyncio.Event()

        async def watch() -> None:
            async for event in world.builds.watch(build.id):
                events.append(event)
                if isinstance(event, octavo.BuildStage) or (
                    isinstance(event, octavo.Build) and event.job.cancel_requested
                ):
                    told.set()

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(20):
            await told.wait()
            assert stages(events) == [("adapt", False)]
            told.clear()
            await world.builds.cancel(build.id)
            await told.wait()
            # Enough for another telling.
            await asyncio.sleep(0.5)
            builder.ends.set()
            result = BuildResult(outcome="cancelled", seconds=1.0, store="s")
            assert await builds.end(UUID(build.id), claimed.job.fence, result=result, cancelled=True)
            await watching
    assert stages(events) == [("adapt", False)]
    assert builder.num_asked == 3
    assert [event.state for event in events if isinstance(event, octavo.Build)] == [
        JobState.RUNNING,
        JobState.RUNNING,
        JobState.CANCELLED,
    ]


async def test_a_build_that_was_accepted_is_found_again_by_its_key_while_there_is_no_builder(
    world: BuilderWorld,
) -> None:
    async with telling(world) as builder:
        build = await world.submit(idempotency_key="once")
    await world.gateways.processes.unregister(builder.process_id)
    assert (await world.submit(idempotency_key="once")).id == build.id
    with pytest.raises(octavo.AlreadyExistsError):
        await world.submit("name: other\n", idempotency_key="once")
    with pytest.raises(octavo.FailedPreconditionError, match="no edge builder"):
        await world.submit()


async def test_no_target_is_said_to_be_ready_that_could_not_be_looked_at(world: BuilderWorld) -> None:
    # The interpreter that is to look at the tool-chains ends before it does.
    (world.folder / "sitecustomize.py").write_text("import os, sys\nif 'targets' in sys.orig_argv:\n    os._exit(7)\n")
    builder = await world.builder(PYTHONPATH=str(world.folder))
    seen: set[str] = set()
    async with asyncio.timeout(20):
        while not any("exit code 7" in reason for reason in seen):
            targets = {target.name: target.missing for target in await world.builds.targets()}
            assert targets.keys() == TARGETS.keys()
            assert all(targets.values())
            seen |= {reason for missing in targets.values() for reason in missing}
            await asyncio.sleep(0.02)
    assert seen <= {"not looked at yet", "the tool-chain could not be looked at: exit code 7"}
    assert "targets.not_known" in builder.log
