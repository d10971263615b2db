"""The stores on a database of the test's own, and short ways to make what the tests are about."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from store_world import World

from octavo_common.db.engine import connect


@pytest.fixture
async def world(pg_dsn: str) -> AsyncIterator[World]:
    database = connect(pg_dsn)
    yield World(pg_dsn, database)
    await database.dispose()
