"""What all stores share: one-statement calls, transactions, and the translation of foreign errors. Knows no tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Executable, exc
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from octavo_common.errors import InvalidArgument, Unavailable


@contextmanager
def translated() -> Iterator[None]:
    """Raise Unavailable when the database does not answer (in time), InvalidArgument for values that it cannot hold."""
    try:
        yield
    except exc.DataError as error:
        # The driver's own words are about columns and encodings, which are nobody's business outside.
        raise InvalidArgument(
            "a value of the request cannot be stored", hint="is there a NUL character in a text, or a number too large?"
        ) from error
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise Unavailable(
            "the database does not answer", hint="`octavo doctor` looks at it", retry_after_s=1.0
        ) from error
    except exc.DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise Unavailable("the connection to the database broke", retry_after_s=1.0) from error


class Store:
    """Base of the stores."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        # Same pool; a lone statement needs no BEGIN and COMMIT of its own.
        self._auto = engine.execution_options(isolation_level="AUTOCOMMIT")

    async def _run(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Execute one statement as a transaction of its own and return its rows."""
        with translated():
            connection = await self._take()
            try:
                result = await connection.execute(statement, values)
                return result.all() if result.returns_rows else ()
            finally:
                # Shielded as SQLAlchemy's own context manager does it.
                await asyncio.shield(connection.close())

    async def _take(self) -> AsyncConnection:
        """Take a connection for lone statements out of the pool; whoever takes it closes it.

        A cancelled caller gets none, and the pool gets it back: cancelled while it sets AUTOCOMMIT, SQLAlchemy would
        leave the connection to the garbage collector, and its place in the pool with it.
        """
        taking = asyncio.ensure_future(_taken(self._auto))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_give_back)
            raise

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        with translated():
            async with self._engine.begin() as connection:
                yield connection


# Closings that are under way: the event loop itself keeps no task alive.
_closings: set[asyncio.Task[None]] = set()


async def _taken(engine: AsyncEngine) -> AsyncConnection:
    return await engine.connect()


def _give_back(taking: asyncio.Future[AsyncConnection]) -> None:
    if taking.cancelled() or taking.exception() is not None:
        return
    closing = asyncio.ensure_future(taking.result().close())
    _closings.add(closing)
    closing.add_done_callback(_closings.discard)
