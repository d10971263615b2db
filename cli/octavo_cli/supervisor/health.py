"""Looks at the services: who is ready, and if not, why not. Starts and stops nothing.

All in the event loop: each thread that waits for an answer would wake more often than the answer takes to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from octavo_cli.supervisor.keeper import Keeper
from octavo_common.db.engine import Database
from octavo_common.errors import OctavoError
from octavo_common.rpc.probe import serves
from octavo_common.store.processes import ProcessStore

_TIMEOUT_S = 2.0
# Rows of dead processes pile up for a while; only those heard of lately matter here.
_RECENT_S = 120.0


async def look(keepers: Iterable[Keeper], database: Database) -> None:
    """Tell each keeper why its process is not ready, or that it is."""
    living = [keeper for keeper in keepers if keeper.pid is not None]
    rows, trouble = await _rows(database)
    reasons = await asyncio.gather(*(_reason(keeper, rows, trouble) for keeper in living))
    for keeper, reason in zip(living, reasons, strict=True):
        keeper.tell(reason)


async def _rows(database: Database) -> tuple[dict[int, float], str]:
    """Heartbeat ages by pid of the processes that count as alive, or why they cannot be read."""
    try:
        records = await ProcessStore(database).list(max_age_s=_RECENT_S)
    except OctavoError as error:
        return {}, error.message
    return {record.pid: record.heartbeat_age_s for record in records if record.alive}, ""


async def _reason(keeper: Keeper, rows: dict[int, float], trouble: str) -> str:
    spec = keeper.spec
    if spec.role == "console":
        return "" if await _answers(spec.http_address) else f"does not answer at {spec.http_address}"
    if trouble:
        return trouble
    if keeper.pid not in rows:
        return "is loading the model" if spec.role == "worker" else "has not registered yet"
    if spec.role == "gateway" and not await asyncio.to_thread(serves, spec.address):
        return f"does not serve at {spec.address}"
    return ""


async def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(f"GET /_stcore/health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.readline()).split()[1:2] == [b"200"]
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError):  # TimeoutError is an OSError
        return False
