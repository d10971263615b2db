"""What all stores share: one-statement calls, transactions, and the translation of foreign errors. Knows no tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from sqlalchemy import Executable, exc
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from octavo_common.db.engine import Database
from octavo_common.errors import InvalidArgument, Unavailable

# What is raised while the server goes, or is gone: by the driver, or by SQLAlchemy over a connection that it has lost;
# and by the driver past SQLAlchemy, where a connection is looked at without a statement.
_AWAY = (
    exc.OperationalError,
    exc.InterfaceError,
    exc.TimeoutError,
    exc.ResourceClosedError,
    exc.PendingRollbackError,
    exc.DisconnectionError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    OSError,
)


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
    except _AWAY as error:
        raise Unavailable(
            "the database does not answer", hint="`octavo doctor` looks at it", retry_after_s=1.0
        ) from error
    except exc.DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise Unavailable("the connection to the database broke", retry_after_s=1.0) from error


class Store:
    """Base of the stores."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _run(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Execute one statement as a transaction of its own and return its rows."""
        with translated():
            return await self._database.run(statement, values)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        with translated():
            async with self._database.begin() as connection:
                yield connection
