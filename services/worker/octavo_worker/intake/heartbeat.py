"""Says that this worker lives and renews its leases, all in one statement; stops when the engine is stuck.

The gate opens with each good answer, from the time at which the renewal was sent. Knows no job's content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from octavo_common.clock import Clock, until_beat
from octavo_common.errors import OctavoError
from octavo_common.jobs.model import HeartbeatAnswer, Held, NewProcess
from octavo_common.store import ProcessStore
from octavo_worker.joblog import Gate

log = structlog.get_logger(__name__)

RETRY_S = 0.5
# A notification asks for an answer at once; many of them shall not become many statements.
MIN_PAUSE_S = 0.05


class Holder(Protocol):
    """Whose leases are renewed."""

    def held(self) -> list[Held]:
        """Every job that the worker still answers for."""
        ...

    def load(self) -> Mapping[str, Any]:
        """Figures for placement."""
        ...

    def on_answer(self, sent: list[Held], answer: HeartbeatAnswer) -> None:
        """Act on what the table says about the jobs that were sent."""
        ...


class Heartbeat:
    """The loop of one worker."""

    def __init__(
        self,
        *,
        store: ProcessStore,
        process: NewProcess,
        holder: Holder,
        gate: Gate,
        clock: Clock,
        stuck: Callable[[], bool],
        on_stuck: Callable[[], None],
        on_idle_beat: Callable[[], None],
    ) -> None:
        """``on_idle_beat`` is called after each good beat of a worker that holds nothing."""
        self._store = store
        self._process = process
        self._holder = holder
        self._gate = gate
        self._clock = clock
        self._stuck = stuck
        self._on_stuck = on_stuck
        self._on_idle_beat = on_idle_beat
        self._poked = asyncio.Event()
        self._stopped = False

    @property
    def period_s(self) -> float:
        """Time between two beats that nobody asks for."""
        return self._process.lease_s / 3

    def stop(self) -> None:
        """End the loop after the beat that is on its way: a statement that is cut costs its connection."""
        self._stopped = True
        self._poked.set()

    def poke(self) -> None:
        """Ask for an answer soon: somebody may have cancelled or taken a job."""
        self._poked.set()

    async def run(self) -> None:
        """Beat every third of the lease, and when poked, until stopped or until the engine is stuck."""
        while not self._stopped:
            if self._stuck():
                log.error("engine.stuck")
                self._on_stuck()
                return
            self._poked.clear()
            good = await self._beat()
            await self._clock.sleep(MIN_PAUSE_S)
            if not self._stopped:
                await self._pause(until_beat(self._clock, self.period_s) if good else RETRY_S)

    async def _beat(self) -> bool:
        sent_s, held = self._clock.monotonic(), self._holder.held()
        try:
            # The connection's own timeouts bound it; to cut it here would cost the connection.
            answer = await self._store.heartbeat(self._process.id, load=self._holder.load(), held=held)
            if not answer.known:
                log.warning("process.registered_again")
                await self._store.register(self._process)
        except OctavoError as error:
            log.warning("process.heartbeat_failed", error=error.message)
            return False
        except Exception:  # the top of a loop: the next beat may do better, and the gate closes if none does
            log.exception("process.heartbeat_failed")
            return False
        self._gate.renew(sent_s)
        self._holder.on_answer(held, answer)
        if not held:
            self._on_idle_beat()
        return True

    async def _pause(self, seconds: float) -> None:
        poked = asyncio.ensure_future(self._poked.wait())
        slept = asyncio.ensure_future(self._clock.sleep(max(0.0, seconds)))
        try:
            await asyncio.wait((poked, slept), return_when=asyncio.FIRST_COMPLETED)
        finally:
            poked.cancel()
            slept.cancel()
