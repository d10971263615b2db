"""What runs beside the gRPC server of a gateway, from start to end. Constructs nothing, and knows no calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_common.rpc.lifecycle import Lifecycle
from octavo_common.telemetry.metrics_http import MetricsServer
from octavo_gateway.http import HttpServer
from octavo_gateway.jobs import Jobs
from octavo_gateway.lifecycle import Presence
from octavo_gateway.settings import GatewaySettings
from octavo_gateway.streams import StreamHub

# Left of drain_s for telling the readers whose streams are handed over.
HAND_OVER_S = 1.0
# For the last writes, if the database answers at all.
STOP_S = 2.0


@dataclass(slots=True, eq=False, kw_only=True)
class Service:
    """What runs beside the gRPC server."""

    hub: StreamHub
    jobs: Jobs
    http: HttpServer
    metrics: MetricsServer
    presence: Presence
    lifecycle: Lifecycle
    settings: GatewaySettings
    # Where others find it.
    host: str
    # What goes on for ever beside the heartbeat, by name.
    work: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def start(self, address: str) -> None:
        """Open the other ports, say so, and begin to work."""
        metrics_port = await self.metrics.start(self.settings.host, self.settings.metrics_port)
        http_port = await self.http.start(self.settings.host, self.settings.http_port)
        await self.presence.announce(
            address=address, http_address=f"{self.host}:{http_port}", metrics_address=f"{self.host}:{metrics_port}"
        )
        for name, work in {**self.work, "heartbeat": self.presence.keep}.items():
            task = asyncio.create_task(work(), name=name)
            self.lifecycle.watch(task, name)
            self._tasks.append(task)

    async def drain(self) -> None:
        """Take nothing new, and wait for the streams as long as there is time."""
        self.jobs.end_watches()
        await self.presence.drain()
        if not await self.hub.wait_idle(max(self.settings.drain_s - HAND_OVER_S, 0.0)):
            await self.hub.hand_over()
        await self.http.stop()

    async def stop(self) -> None:
        """End everything."""
        # A second signal may have cut the drain short.
        await self.hub.hand_over()
        await self.http.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.metrics.stop()
        with contextlib.suppress(TimeoutError):  # the database is away: heartbeats grow old instead
            async with asyncio.timeout(STOP_S):
                await self.hub.close()
                await self.presence.leave()
