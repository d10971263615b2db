"""The gateway's world with its HTTP port, for real OpenAI clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fakes.gateway_world import World
from http_world import HttpWorld

from octavo_common.db.engine import connect
from octavo_common.settings import CommonSettings
from octavo_common.telemetry import setup


@pytest.fixture(scope="session")
def telemetry() -> Iterator[setup.Telemetry]:
    made = setup.init("openai-test", "test", CommonSettings(data_dir=Path("/nonexistent"), log_level="info"))
    yield made
    made.shutdown()


@pytest.fixture
async def http(pg_dsn: str, telemetry: setup.Telemetry) -> AsyncIterator[HttpWorld]:
    database = connect(pg_dsn, pool_size=12)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.dispose)
        world = World(pg_dsn, database, telemetry, stack)
        await world.prepare()
        made = HttpWorld(world)
        await made.start()
        yield made
