"""Waits for notifications on a connection of its own. They are hints over a poll: losing one costs only time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

import psycopg
import structlog
from psycopg import sql

from octavo_common.clock import Clock, until_beat
from octavo_common.db.engine import CONNECT_TIMEOUT_S, connect_args

log = structlog.get_logger(__name__)

# A peer that has vanished is noticed by the connection's own keep-alives (db/engine.py), and wakes nobody for it.
PING_S = 30.0
_PING_TIMEOUT_S = 4.0
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0


class Listener:
    """LISTENs on channels, reconnects by itself, and wakes its reader after each reconnect.

    One reader; several notifications before a `wait` are one.
    """

    def __init__(self, dsn: str, channels: Iterable[str], clock: Clock, *, ping_s: float = PING_S) -> None:
        self._dsn = dsn
        self._channels = tuple(channels)
        self._clock = clock
        self._ping_s = ping_s
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # True while LISTEN is in effect.
        self.connected = False
        # Backend of the connection, for tests and `doctor`.
        self.backend_pid = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep_listening(), name="octavo-listener")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a notification. True: something was notified or may have been missed; False: the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True

    def wake(self) -> None:
        """Wake the reader as a notification would."""
        self._woken.set()

    async def _keep_listening(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S + 1):
                    connection = await self._connect()
            except (psycopg.Error, TimeoutError, OSError) as error:
                log.debug("listener.connect_failed", error=str(error).strip(), retry_in_s=backoff_s)
                await self._clock.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
                continue
            backoff_s = _FIRST_BACKOFF_S
            try:
                await self._read(connection)
            except (psycopg.Error, TimeoutError, OSError) as error:
                log.warning("listener.lost", error=str(error).strip())
            finally:
                self.connected = False
                await connection.close()

    async def _connect(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        # A listener is idle by design and runs no long statement.
        connection = await psycopg.AsyncConnection.connect(
            self._dsn, autocommit=True, **connect_args("octavo-listener", statement_timeout_s=_PING_TIMEOUT_S)
        )
        try:
            for channel in self._channels:
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        except BaseException:
            await connection.close()
            raise
        self.backend_pid = connection.info.backend_pid
        self.connected = True
        # What was notified meanwhile is lost: look at once.
        self._woken.set()
        return connection

    async def _read(self, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        """Until the connection breaks. Sleeps in the event loop: psycopg's own wait wakes ten times a second."""
        # For those that come in with the answer to a ping.
        connection.add_notify_handler(lambda _: self._woken.set())
        while True:
            if await _is_readable(connection.fileno(), until_beat(self._clock, self._ping_s)):
                connection.pgconn.consume_input()
                while connection.pgconn.notifies():
                    self._woken.set()
            else:
                # A half-open connection looks idle for ever; the ping finds out.
                async with asyncio.timeout(_PING_TIMEOUT_S):
                    await connection.execute("select 1")


async def _is_readable(fileno: int, timeout_s: float) -> bool:
    """Wait until there is something to read; False when the time is over."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fileno, readable.set)
    try:
        async with asyncio.timeout(timeout_s):
            await readable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fileno)
    return True
