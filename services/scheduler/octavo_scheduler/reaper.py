"""Decides when lost leases may be reaped. Knows the store as a protocol; the rules of a single job are the store's.

After an outage of the database, or a pause of this process, owners that live renew first: so the reaper acts only after
one whole lease of unbroken contact, and not before one lease after the server's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import structlog

from octavo_common.clock import Clock
from octavo_common.jobs.model import Reaped

log = structlog.get_logger(__name__)

PAGE = 500


class ReapStore(Protocol):
    """The part of PlacementStore that the reaper needs."""

    async def reap(self, limit: int = ...) -> Sequence[Reaped]:
        """Queue again, or end, what lost its worker."""
        ...


class Contact:
    """How long the database has answered without a break.

    Silence counts as a break too: a process that was paused does not know what it missed.
    """

    def __init__(self, clock: Clock, *, max_silence_s: float) -> None:
        self._clock = clock
        self._max_silence_s = max_silence_s
        self._since: float | None = None
        self._last = clock.monotonic()

    def good(self) -> None:
        """The database has answered."""
        now = self._clock.monotonic()
        if self._since is None or now - self._last > self._max_silence_s:
            self._since = now
        self._last = now

    def lost(self) -> None:
        """A statement has failed."""
        self._since = None

    def unbroken_s(self) -> float:
        """Seconds of contact up to now; 0 without any."""
        now = self._clock.monotonic()
        if self._since is None or now - self._last > self._max_silence_s:
            return 0.0
        return now - self._since


class Reaper:
    """Reaps when it may."""

    def __init__(self, store: ReapStore, contact: Contact, *, lease_s: float) -> None:
        self._store = store
        self._contact = contact
        self._lease_s = lease_s

    async def run(self, server_age_s: float) -> Counter[str]:
        """Reap all that can be reaped now; returns how many jobs went to which state.

        `server_age_s`: seconds since the database server started.
        """
        outcome: Counter[str] = Counter()
        while self._contact.unbroken_s() > self._lease_s and server_age_s > self._lease_s:
            reaped = await self._store.reap(PAGE)
            for job in reaped:
                outcome[job.state.value] += 1
                log.info("job.reaped", job_id=str(job.id), state=job.state.value, fence=job.fence, losses=job.losses)
            if len(reaped) < PAGE:
                break
        return outcome
