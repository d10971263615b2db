"""A gateway, real edge builders as processes of their own, and a small random checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from builder_world import BuilderWorld, Place
from fakes.gateway_world import World

from octavo_common.db.engine import connect
from octavo_common.settings import CommonSettings
from octavo_common.telemetry import setup


@pytest.fixture(scope="session")
def builder_telemetry() -> Iterator[setup.Telemetry]:
    made = setup.init("builder-test", "test", CommonSettings(data_dir=Path("/nonexistent"), log_level="info"))
    yield made
    made.shutdown()


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The checkpoint, and a data directory that all tests share: a stage that one has built is there for the next."""
    return Place(tmp_path_factory.mktemp("builder"))


@pytest.fixture
async def world(
    pg_dsn: str, builder_telemetry: setup.Telemetry, place: Place, tmp_path: Path
) -> AsyncIterator[BuilderWorld]:
    database = connect(pg_dsn, pool_size=12)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.dispose)
        gateways = World(pg_dsn, database, builder_telemetry, stack)
        await gateways.prepare()
        yield await BuilderWorld.make(gateways, place, tmp_path)
