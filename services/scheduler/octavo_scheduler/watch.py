"""Keeps a health watch open to every worker: a dead one is known within milliseconds instead of after its lease.

Only a hint. A worker that this process cannot reach, but whose heartbeats come, gets jobs all the same (fleet.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo_common.clock import Clock
from octavo_common.jobs.model import FleetWorker
from octavo_common.rpc.channel import internal_channel
from octavo_scheduler.fleet import Fleet

FIRST_RETRY_S = 0.2
MAX_RETRY_S = 2.0
PROBE_TIMEOUT_S = 0.5

log = structlog.get_logger(__name__)


class WorkerWatch:
    """One task per worker. `on_change` is called when a worker begins to serve, or seems to be gone."""

    def __init__(self, fleet: Fleet, *, token: str, clock: Clock, on_change: Callable[[], None]) -> None:
        self._fleet = fleet
        self._token = token
        self._clock = clock
        self._on_change = on_change
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._channels: dict[UUID, grpc.aio.Channel] = {}
        self._probes: set[asyncio.Task[None]] = set()

    def follow(self, workers: Sequence[FleetWorker]) -> None:
        """Watch exactly these workers from now on."""
        alive = {worker.id: worker for worker in workers if worker.address}
        for gone in self._tasks.keys() - alive.keys():
            self._tasks.pop(gone).cancel()
        for new in alive.keys() - self._tasks.keys():
            self._fleet.await_contact(new)
            self._tasks[new] = asyncio.create_task(self._watch(alive[new]), name=f"watch-{new.hex[:8]}")

    def probe(self, worker_id: UUID) -> None:
        """Ask a suspected worker now; an answer ends the suspicion."""
        channel = self._channels.get(worker_id)
        if channel is not None:
            task = asyncio.create_task(self._probe(worker_id, channel))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    async def close(self) -> None:
        """End all watches."""
        tasks = [*self._tasks.values(), *self._probes]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, worker: FleetWorker) -> None:
        channel = internal_channel(worker.address, self._token, clock=self._clock)
        self._channels[worker.id] = channel
        try:
            await self._watch_over(worker, health_pb2_grpc.HealthStub(channel))
        finally:
            self._channels.pop(worker.id, None)
            await channel.close()

    async def _watch_over(self, worker: FleetWorker, stub: health_pb2_grpc.HealthStub) -> None:
        hopeful, retry_s = True, FIRST_RETRY_S
        while True:
            call = stub.Watch(health_pb2.HealthCheckRequest())  # pyright: ignore[reportAttributeAccessIssue] - missing in the stubs
            try:
                async for answer in call:
                    hopeful, retry_s = True, FIRST_RETRY_S
                    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
                    self._fleet.set_serving(worker.id, serving)
                    if serving:
                        self._on_change()
            except grpc.aio.AioRpcError as error:
                log.debug("worker.unreachable", worker_id=str(worker.id), code=error.code().name)
            finally:
                call.cancel()
            # Once per loss of contact: a network that only we cannot cross must not hold a living worker back for ever.
            if hopeful:
                log.info("worker.suspected", worker_id=str(worker.id), address=worker.address)
                self._fleet.suspect(worker.id)
                self._on_change()
                hopeful = False
            await self._clock.sleep(retry_s)
            retry_s = min(retry_s * 2, MAX_RETRY_S)

    async def _probe(self, worker_id: UUID, channel: grpc.aio.Channel) -> None:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(  # pyright: ignore[reportAttributeAccessIssue] - missing in the stubs
                health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S, wait_for_ready=False
            )
        except grpc.aio.AioRpcError:
            return
        self._fleet.trust(worker_id)
        self._on_change()
