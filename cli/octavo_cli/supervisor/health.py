"""Looks at the services: who is ready, and if not, why not. Starts and stops nothing."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncEngine

from octavo_cli.supervisor.keeper import Keeper
from octavo_common.errors import OctavoError
from octavo_common.rpc.probe import serves
from octavo_common.store.processes import ProcessStore

_TIMEOUT_S = 2.0
# Rows of dead processes pile up for a while; only those heard of lately matter here.
_RECENT_S = 120.0


async def look(keepers: Iterable[Keeper], engine: AsyncEngine) -> None:
    """Tell each keeper why its process is not ready, or that it is."""
    living = [keeper for keeper in keepers if keeper.pid is not None]
    rows, trouble = await _rows(engine)
    reasons = await asyncio.gather(*(_reason(keeper, rows, trouble) for keeper in living))
    for keeper, reason in zip(living, reasons, strict=True):
        keeper.tell(reason)


async def _rows(engine: AsyncEngine) -> tuple[dict[int, float], str]:
    """Heartbeat ages by pid of the processes that count as alive, or why they cannot be read."""
    try:
        records = await ProcessStore(engine).list(max_age_s=_RECENT_S)
    except OctavoError as error:
        return {}, error.message
    return {record.pid: record.heartbeat_age_s for record in records if record.alive}, ""


async def _reason(keeper: Keeper, rows: dict[int, float], trouble: str) -> str:
    spec = keeper.spec
    if spec.role == "console":
        url = f"http://{spec.http_address}/_stcore/health"
        return "" if await asyncio.to_thread(_answers, url) else f"does not answer at {spec.http_address}"
    if trouble:
        return trouble
    if keeper.pid not in rows:
        return "is loading the model" if spec.role == "worker" else "has not registered yet"
    if spec.role == "gateway" and not await asyncio.to_thread(serves, spec.address):
        return f"does not serve at {spec.address}"
    return ""


def _answers(url: str) -> bool:
    # No proxy: the address is this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
