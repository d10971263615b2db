"""Lets a command work on the platform's database, as an operator. Knows no tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo_cli.context import Context
from octavo_common.db.engine import Database, connect

T = TypeVar("T")


def on_database(context: Context, work: Callable[[Database], Awaitable[T]], *, name: str) -> T:
    """Run work with one connection to the database; `name` is the command, as the server's list of sessions has it."""

    async def run() -> T:
        database = connect(context.database_url(), pool_size=1, application_name=name)
        try:
            return await work(database)
        finally:
            await database.dispose()

    return asyncio.run(run())
