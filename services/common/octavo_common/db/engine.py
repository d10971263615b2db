"""Connections to Postgres: one pool per process, with timeouts that fit a latency path. Knows no tables."""

from __future__ import annotations

import asyncio
import json
import re
import select
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from sqlalchemy import Executable, event, make_url
from sqlalchemy.engine import Row
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

# Postgres cannot hold U+0000 or lone surrogates in jsonb, and a model may well produce the first. They are kept by an
# escape in the private use area; _ESCAPE itself is escaped too, so that every string comes back as it was.
_ESCAPE = "\uf8ff"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff\uf8ff]")
_SUSPECT = re.compile(r"\\u(0000|d[89a-f]|f8ff)")
_ESCAPED = re.compile("\uf8ff([0-9a-f]{4})")

CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 10


class Database:
    """A process's way to its database: a pool for transactions, and a shorter way for lone statements.

    A lone statement is a transaction of its own. It needs no BEGIN and COMMIT, and a connection that one of them has
    used is kept for the next as it is: through the pool each would pay for taking, setting and resetting it, which
    takes longer than most statements.
    """

    def __init__(self, engine: AsyncEngine, *, num_kept: int) -> None:
        """``num_kept``: connections that may wait for lone statements; each is one less for transactions."""
        self.engine = engine
        self._auto = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._num_kept = num_kept
        # The last one used comes first.
        self._kept: list[AsyncConnection] = []
        # Closings that are under way: the event loop itself keeps no task alive.
        self._closings: set[asyncio.Task[None]] = set()

    @property
    def num_in_use(self) -> int:
        """Connections that somebody has taken and not given back."""
        return self.engine.pool.checkedout() - len(self._kept)  # type: ignore[attr-defined] - a QueuePool

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection in a transaction that is committed at the end of the block."""
        return self.engine.begin()

    async def run(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Execute one statement as a transaction of its own and return its rows."""
        connection = await self._kept_one() or await self.take()
        is_kept = False
        try:
            result = await connection.execute(statement, values)
            rows = result.all() if result.returns_rows else ()
            is_kept = self._keep(connection)
            return rows
        finally:
            if not is_kept:
                # Shielded as SQLAlchemy's own context manager does it.
                await asyncio.shield(connection.close())

    async def take(self) -> AsyncConnection:
        """Take a connection for lone statements out of the pool; whoever takes it closes it.

        A cancelled caller gets none, and the pool gets it back: cancelled while it sets AUTOCOMMIT, SQLAlchemy would
        leave the connection to the garbage collector, and its place in the pool with it.
        """
        taking = asyncio.ensure_future(self._taken())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._give_back)
            raise

    async def dispose(self) -> None:
        """Close the connections that nobody uses."""
        kept, self._kept = self._kept, []
        for connection in kept:
            await asyncio.shield(connection.close())
        await self.engine.dispose()

    async def _taken(self) -> AsyncConnection:
        return await self._auto.connect()

    async def _kept_one(self) -> AsyncConnection | None:
        while self._kept:
            connection = self._kept.pop()
            sync = connection.sync_connection
            if sync is not None and _is_alive(sync.connection.driver_connection):
                return connection
            await asyncio.shield(_drop(connection))
        return None

    def _keep(self, connection: AsyncConnection) -> bool:
        if len(self._kept) >= self._num_kept or connection.invalidated:
            return False
        self._kept.append(connection)
        return True

    def _give_back(self, taking: asyncio.Future[AsyncConnection]) -> None:
        if taking.cancelled() or taking.exception() is not None:
            return
        closing = asyncio.ensure_future(taking.result().close())
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)


def connect(dsn: str, *, pool_size: int = 8, application_name: str = "octavo") -> Database:
    """Make the process's one pool. Nothing is opened before the first use."""
    engine = create_async_engine(
        make_url(dsn).set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_use_lifo=True,
        connect_args=connect_args(application_name),
        json_serializer=dumps,
        json_deserializer=loads,
        # Errors are logged, and what a statement is given may be a prompt.
        hide_parameters=True,
    )
    event.listen(engine.sync_engine, "checkout", _check_alive)
    # With as much overflow again, transactions always find places.
    return Database(engine, num_kept=max(1, pool_size // 2))


def connect_args(application_name: str, *, statement_timeout_s: float = STATEMENT_TIMEOUT_S) -> dict[str, Any]:
    """Parameters for libpq: a dead peer is noticed by either side within seconds."""
    options = {
        "statement_timeout": int(statement_timeout_s * 1000),
        "idle_in_transaction_session_timeout": 15_000,
        "lock_timeout": 5_000,
        # The server's side: locks of a host that vanished are freed soon.
        "tcp_keepalives_idle": 5,
        "tcp_keepalives_interval": 2,
        "tcp_keepalives_count": 3,
    }
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        "application_name": application_name,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }


def _check_alive(connection: Any, *_: object) -> None:
    """Refuse a pooled connection that the server has closed; the pool then opens a new one.

    An idle connection has nothing to read but its end. A ping would find that out too, by a journey to the server and
    back before every statement; a peer that vanished without a word would keep it waiting as it does the statement.
    """
    if not _is_alive(connection.driver_connection):
        raise InvalidatePoolError


def _is_alive(raw: Any) -> bool:
    return not raw.closed and not _is_readable(raw.fileno())


async def _drop(connection: AsyncConnection) -> None:
    """Close a connection, and let the pool know that it is none any more."""
    try:
        await connection.invalidate()
    finally:
        await connection.close()


def _is_readable(fileno: int) -> bool:
    # Not select(): it knows no descriptors beyond 1023.
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))


def dumps(value: Any) -> str:
    """JSON that jsonb takes, whatever the strings hold."""
    encoded = json.dumps(value)
    return json.dumps(_map_strings(value, _escape)) if _SUSPECT.search(encoded) else encoded


def loads(encoded: str | bytes) -> Any:
    """Inverse of dumps."""
    value = json.loads(encoded)
    raw = encoded.encode() if isinstance(encoded, str) else encoded
    return _map_strings(value, _unescape) if _ESCAPE.encode() in raw or b"\\uf8ff" in raw else value


def _escape(value: str) -> str:
    return _UNSTORABLE.sub(lambda m: f"{_ESCAPE}{ord(m.group()):04x}", value)


def _unescape(value: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m.group(1), 16)), value)


def _map_strings(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value
