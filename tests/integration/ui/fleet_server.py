"""A gateway of planning and of the fleet alone, over gRPC and without a database, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from octavo_common.rpc.server import make_server


class Nobody:
    """No worker is alive."""

    async def list(self, role: str | None = None, max_age_s: float | None = None) -> list[Any]:
        return []


@contextmanager
def serving(add: Callable[[Any], None]) -> Iterator[str]:
    """The address of a server with what ``add`` adds to it."""
    started, ended = threading.Event(), asyncio.Event()
    places: list[int] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = make_server()
        add(server)
        places.append(await server.start("127.0.0.1", 0))
        await server.set_serving(True)
        started.set()
        await ended.wait()
        await server.stop(0)

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    try:
        yield f"127.0.0.1:{places[0]}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
