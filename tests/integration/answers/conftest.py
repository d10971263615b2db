"""A whole platform in one event loop: gateway with both rims, a worker with the tiny engine, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from answers_world import Platform
from fakes.gateway_world import World

from octavo_common.db.engine import connect
from octavo_common.settings import CommonSettings
from octavo_common.telemetry import setup


@pytest.fixture(scope="session")
def telemetry() -> Iterator[setup.Telemetry]:
    made = setup.init("answers-test", "test", CommonSettings(data_dir=Path("/nonexistent"), log_level="error"))
    yield made
    made.shutdown()


@pytest.fixture
async def empty_world(pg_dsn: str, telemetry: setup.Telemetry) -> AsyncIterator[World]:
    """A database with keys, and no process yet."""
    database = connect(pg_dsn, pool_size=12)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.dispose)
        world = World(pg_dsn, database, telemetry, stack)
        await world.prepare()
        yield world


@pytest.fixture
async def platform(empty_world: World) -> Platform:
    made = Platform(empty_world)
    await made.start()
    return made
