"""What a builder has still to tell of a build that has ended is waited for, for a time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from octavo.v1 import builder_pb2
from octavo_common.clock import SystemClock
from octavo_gateway.builds import builds
from octavo_gateway.builds.builds import Builds

STAGE = builder_pb2.FollowBuildResponse(stage=builder_pb2.BuildStage(stage="compile"))


async def test_nobody_waits_for_what_is_told_later_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "LAST_WORDS_S", 0.05)
    nothing = cast(Any, None)
    watched = Builds(store=nothing, jobs=nothing, builders=nothing, observer=nothing, clock=SystemClock())
    events: asyncio.Queue[Any] = asyncio.Queue()
    events.put_nowait(STAGE)
    follower = asyncio.create_task(asyncio.sleep(600))
    assert await watched._last_words(follower, events) == [STAGE]
    before = asyncio.all_tasks() - {follower, asyncio.current_task()}
    await asyncio.sleep(0)
    events.put_nowait(STAGE)
    await asyncio.sleep(0)
    assert events.qsize() == 1
    assert all(task.done() for task in before)
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)
