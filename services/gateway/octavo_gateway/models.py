"""The models that can be asked for: cards of live workers, and of those that were alive a short time ago.

A model is remembered while its last worker restarts, so that a queue may form meanwhile. Knows no tokenizers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import ModelNotFound, Unavailable
from octavo_common.jobs.model import ProcessRecord
from octavo_common.jobs.spec import ModelCard
from octavo_gateway.values import ModelInfo

log = structlog.get_logger(__name__)

# How old the picture may be that a request is judged by.
MAX_AGE_S = 1.0
REMEMBER_S = 600.0


class Processes(Protocol):
    """The part of ProcessStore that the catalogue needs."""

    async def list(self, role: str | None = None, max_age_s: float | None = None) -> list[ProcessRecord]:
        """Processes of a role whose heartbeat is at most so old."""
        ...


class Catalogue:
    """Answers from a picture of the workers that is at most a second old."""

    def __init__(self, processes: Processes, clock: Clock, *, remember_s: float = REMEMBER_S) -> None:
        self._processes = processes
        self._clock = clock
        self._remember_s = remember_s
        self._workers: Sequence[ProcessRecord] = ()
        self._read_s: float | None = None
        # Cards of workers whose rows may be gone, and when each was last there.
        self._seen: dict[UUID, tuple[ModelCard, float]] = {}
        self._reading = asyncio.Lock()

    async def workers(self) -> Sequence[ProcessRecord]:
        """Workers that are or were alive a short time ago, newest start first."""
        if self._fresh():
            return self._workers
        async with self._reading:
            if not self._fresh():
                await self._read()
        return self._workers

    async def find(self, name: str) -> ModelCard:
        """The card of a model; an empty name means the only model. Raises ModelNotFound with the names there are.

        A model is refused by a picture only that was begun after the request came: its worker may just have registered.
        """
        came_s = self._clock.monotonic()
        try:
            return _pick(await self.cards(), name)
        except ModelNotFound:
            async with self._reading:
                if self._read_s is None or self._read_s <= came_s:
                    await self._read()
            return _pick(await self.cards(), name)

    async def by_digest(self, digest: str) -> ModelCard | None:
        """A card of the model with these weights."""
        return next((card for card in await self.cards() if card.digest == digest), None)

    async def agree(self, one: UUID, other: UUID) -> bool:
        """Whether two workers give the same tokens bit by bit. False where one was never seen, or too long ago."""
        await self.workers()
        if not {one, other} <= self._seen.keys():
            return False
        (first, _), (second, _) = self._seen[one], self._seen[other]
        same = (first.digest, first.numerics_id) == (second.digest, second.numerics_id)
        return same and first.exact and second.exact

    async def list(self) -> list[ModelInfo]:
        """All models by name."""
        by_name: dict[str, list[ProcessRecord]] = {}
        for worker in await self.workers():
            if worker.card is not None:
                by_name.setdefault(worker.card.name, []).append(worker)
        infos: list[ModelInfo] = []
        for name in sorted(by_name):
            card = await self.find(name)
            same = [w for w in by_name[name] if w.card is not None and w.card.digest == card.digest]
            infos.append(
                ModelInfo(
                    name=name,
                    digest=card.digest,
                    family=card.family,
                    max_sequence_tokens=card.max_sequence_tokens,
                    numerics_ids=tuple(sorted({w.card.numerics_id for w in same if w.card is not None})),
                    num_workers=sum(w.alive for w in same),
                    created_s=min(w.started_at.timestamp() for w in same),
                )
            )
        return infos

    async def cards(self) -> Sequence[ModelCard]:
        """Cards, those of workers that take jobs first, then the newest."""
        workers = await self.workers()
        ranked = sorted(workers, key=lambda w: (not w.alive, w.draining))
        return [worker.card for worker in ranked if worker.card is not None]

    def _fresh(self) -> bool:
        return self._read_s is not None and self._clock.monotonic() - self._read_s < MAX_AGE_S

    async def _read(self) -> None:
        began_s = self._clock.monotonic()
        try:
            workers = await self._processes.list("worker", self._remember_s)
        except Unavailable:
            # The old picture is better than none; a request will still fail if it has to write.
            if self._read_s is None or self._clock.monotonic() - self._read_s > self._remember_s:
                raise
            log.warning("models.database_failed")
            return
        self._workers = sorted(workers, key=lambda w: w.started_at, reverse=True)
        self._read_s = began_s
        remembered = {key: seen for key, seen in self._seen.items() if began_s - seen[1] < self._remember_s}
        self._seen = remembered | {w.id: (w.card, began_s) for w in workers if w.card is not None}


def _pick(cards: Sequence[ModelCard], name: str) -> ModelCard:
    """The first card of that name, or of the only name."""
    names = list(dict.fromkeys(card.name for card in cards))
    if not names:
        raise ModelNotFound("no model is served", hint="start a worker, or wait until it has loaded", param="model")
    if not name and len(names) > 1:
        raise ModelNotFound(
            "several models are served and the request names none",
            hint=f"name one of {', '.join(sorted(names))}",
            param="model",
        )
    for card in cards:
        if card.name == (name or names[0]):
            return card
    raise ModelNotFound(
        f"there is no model {name!r}", hint=f"models that are served: {', '.join(sorted(names))}", param="model"
    )
