"""A call that is cancelled at any moment leaves no connection behind."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from octavo_common.db.engine import connect
from octavo_common.store import ProcessStore

pytestmark = pytest.mark.db
MOMENTS_MS = [0.25 * n for n in range(2, 60)]


async def test_the_pool_has_every_connection_back_after_calls_that_were_cancelled(pg_dsn: str) -> None:
    database = connect(pg_dsn, pool_size=2)
    processes = ProcessStore(database)
    try:
        for moment_ms in MOMENTS_MS:
            # An empty pool: opening a connection has the most moments in which a caller may go.
            await database.dispose()
            call = asyncio.create_task(processes.list("worker"))
            await asyncio.sleep(moment_ms / 1000)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            async with asyncio.timeout(5):
                while database.num_in_use:
                    await asyncio.sleep(0.005)
        assert await processes.list("worker") == []
    finally:
        await database.dispose()
    # What was left to the collector would warn here, and warnings are errors.
    del call
    gc.collect()
