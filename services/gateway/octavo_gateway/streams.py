"""The streams of one gateway: which jobs it follows for whom, and what happens when a reader goes.

One listener and one poll serve all of them: who wakes reads the rows of all followed jobs and tells their relays.
Knows neither gRPC nor HTTP, and nothing of prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import Context
from typing import Protocol
from uuid import UUID

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import Cancelled, Internal, OctavoError, StreamDiverged, Unavailable
from octavo_common.jobs.model import Job, OwnedJob
from octavo_common.jobs.spec import GenerationSpec
from octavo_gateway import endings
from octavo_gateway.chores import Chores
from octavo_gateway.contact import ContactRows, Rows
from octavo_gateway.following import Followed, Reader
from octavo_gateway.relay import Relay
from octavo_gateway.requests import OnDisconnect
from octavo_gateway.values import Finish, TokenPiece
from octavo_gateway.workers import WorkerPool

log = structlog.get_logger(__name__)

# How often rows are read that nobody has told of; with nothing to follow there are none.
POLL_S, IDLE_POLL_S = 1.0, 30.0
# A stream that was accepted and is never read belongs to a client that has gone.
UNREAD_S = 5.0
DETACH_GRACE_S = 30.0
# A call's deadline and its job's are the same, measured at two places.
DEADLINE_MARGIN_S = 0.1

CountChars = Callable[[Job, Sequence[int]], Awaitable[int]]
# Whether a job that begins anew at the second worker gives the tokens of the first.
IsExact = Callable[[UUID, UUID], Awaitable[bool]]
# What a reader has of each answer.
Received = Sequence[Sequence[int]]


class Store(Rows, Protocol):
    """The part of StreamStore that streams need."""

    async def detach(self, job_id: UUID, *, owner: UUID) -> None:
        """Give a stream up, if this owner still has it."""
        ...


class Waiter(Protocol):
    """The part of Listener that streams need."""

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a notification, or until the time is over."""
        ...

    def wake(self) -> None:
        """End the wait as a notification would."""
        ...


class StreamHub:
    """All streams of this gateway."""

    def __init__(
        self,
        *,
        owner: UUID,
        store: Store,
        cancel: Callable[[UUID, str], Awaitable[object]],
        count_chars: CountChars,
        is_exact: IsExact,
        on_resumed: Callable[[], None],
        workers: WorkerPool,
        clock: Clock,
        lease_s: float,
        unread_s: float = UNREAD_S,
        grace_s: float = DETACH_GRACE_S,
    ) -> None:
        self.owner = owner
        self._store = store
        self._rows = ContactRows(store, lease_s=lease_s, clock=clock)
        self._cancel = cancel
        self._count_chars = count_chars
        self._is_exact = is_exact
        self._on_resumed = on_resumed
        self._workers = workers
        self._clock = clock
        self._unread_s = unread_s
        self._grace_s = grace_s
        self._followed: dict[UUID, list[Followed]] = {}
        self._readers: dict[int, Reader] = {}
        # While it runs.
        self._listener: Waiter | None = None
        # How often it was told to read rows, or did so unasked.
        self.num_wakes = 0
        self._last_reader = 0
        self._chores = Chores(clock)
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        """No more streams are begun here."""
        return self._draining

    @property
    def num_readers(self) -> int:
        """Streams that are being read or about to be."""
        return len(self._readers)

    @property
    def num_followed(self) -> int:
        """Jobs whose streams this gateway holds, read or in their grace."""
        return len(self._followed)

    # --- readers

    def open(
        self,
        job: Job,
        received: Received,
        on_disconnect: OnDisconnect,
        *,
        timeout_s: float | None = None,
        is_new: bool = False,
        is_queued: bool = False,
        row: OwnedJob | None = None,
    ) -> int:
        """Follow a job for a reader that has these tokens of each answer; returns the reader's number for `read`.

        `timeout_s` is what the job has until its own deadline, if that is known. `is_new`: it was made just now.
        `is_queued`: and num_wakes has not changed since: its next change will be told. `row`: what its row says.
        Raises Unavailable while this gateway drains.
        """
        if self._draining:
            raise self._leaving(job.id)
        followed = self._joinable(job.id, received) or self._follow(job, received, is_new, is_queued, row)
        followed.detached |= on_disconnect is OnDisconnect.DETACH
        if timeout_s is not None:
            followed.deadline_s = self._clock.monotonic() + timeout_s
        self._last_reader += 1
        reader = self._last_reader
        positions = followed.relay.positions_of(received)
        assert positions is not None
        followed.readers.add(reader)
        timer = asyncio.get_running_loop().call_later(self._unread_s, self.leave, reader)
        self._readers[reader] = Reader(followed, positions, timer)
        self._disarm(followed)
        self._idle.clear()
        return reader

    async def read(self, reader: int) -> AsyncGenerator[TokenPiece | Finish, None]:
        """Yield what follows the reader's tokens. Its end, or its closing, is the end of the reader."""
        entry = self._readers.get(reader)
        if entry is None:
            raise Cancelled("the stream was not read in time")
        entry.timer.cancel()
        relay = entry.followed.relay
        try:
            while True:
                changed, outcome = relay.changed, relay.outcome
                pieces = entry.take()
                if pieces:
                    for piece in pieces:
                        yield piece
                elif isinstance(outcome, Finish):
                    yield outcome
                    return
                elif outcome is not None:
                    # A fresh one for each reader: tracebacks grow on shared exceptions.
                    raise outcome.fresh()
                else:
                    await changed.wait()
        finally:
            self.leave(reader)

    def leave(self, reader: int) -> None:
        """The reader reads no more. Before the job's end that is a disconnect; a reader that has left is ignored."""
        entry = self._readers.pop(reader, None)
        if entry is None:
            return
        entry.timer.cancel()
        followed = entry.followed
        followed.readers.discard(reader)
        if not self._readers:
            self._idle.set()
        if followed.readers:
            return
        if followed.relay.outcome is not None:
            self._drop(followed)
            return
        log.info("stream.client_gone", job_id=str(followed.relay.job_id), detached=followed.detached)
        if followed.detached:
            followed.timer = asyncio.get_running_loop().call_later(self._grace_s, self._let_go, followed)
        else:
            self._drop(followed)
            if followed.relay.job_id not in self._followed:
                self._chores.add(lambda: self._give_up(followed))

    def _let_go(self, followed: Followed) -> None:
        if followed.readers:
            return
        self._drop(followed)
        if followed.relay.job_id not in self._followed and followed.relay.outcome is None:
            self._chores.add(lambda: self._detach(followed.relay.job_id))

    async def _give_up(self, followed: Followed) -> None:
        job_id = followed.relay.job_id
        if followed.deadline_s is not None and self._clock.monotonic() >= followed.deadline_s - DEADLINE_MARGIN_S:
            # The client left because the time is over; who holds the job ends it for that reason.
            await self._detach(job_id)
            return
        # A client that went to another gateway has made that the owner: then it is not gone.
        rows = await self._store.rows([job_id])
        if rows and rows[0].stream_owner == self.owner and not rows[0].state.ended:
            await self._cancel(job_id, followed.tenant)

    async def _detach(self, job_id: UUID) -> None:
        await self._store.detach(job_id, owner=self.owner)

    def abandon(self, job_id: UUID, tenant: str) -> None:
        """Cancel a job whose caller has gone before its stream began."""
        self._chores.add(lambda: self._cancel(job_id, tenant))

    # --- relays

    def _joinable(self, job_id: UUID, received: Received) -> Followed | None:
        for followed in self._followed.get(job_id, ()):
            relay = followed.relay
            if not isinstance(relay.outcome, OctavoError) and relay.positions_of(received) is not None:
                return followed
        return None

    def _follow(self, job: Job, received: Received, is_new: bool, is_queued: bool, row: OwnedJob | None) -> Followed:
        relay = Relay(
            job_id=job.id,
            owner=self.owner,
            received=received,
            restarts=GenerationSpec.from_json(dict(job.payload)).restarts,
            is_exact=self._is_exact,
            count_chars=lambda ids: self._count_chars(job, ids),
            on_resumed=self._on_resumed,
            store=self._rows,
            workers=self._workers,
            clock=self._clock,
            is_new=is_new,
            is_queued=is_queued,
            row=row,
        )
        # Its own context: what the call that begins it knows (deadline, spans) ends before it does.
        task = asyncio.get_running_loop().create_task(relay.run(), context=Context(), name=f"relay {job.id}")
        followed = Followed(relay=relay, task=task, tenant=job.tenant)
        if not self._followed and self._listener is not None:
            # Its wait is a long one; the first poll is due as if it were not.
            asyncio.get_running_loop().call_later(POLL_S, self._listener.wake)
        self._followed.setdefault(job.id, []).append(followed)
        task.add_done_callback(lambda _: self._on_end(followed))
        return followed

    def _on_end(self, followed: Followed) -> None:
        relay = followed.relay
        if isinstance(relay.outcome, (StreamDiverged, Internal)) and len(self._followed.get(relay.job_id, ())) < 2:
            # The job may go on, and here nobody looks after it any more.
            self._chores.add(lambda: self._detach(relay.job_id))
        if not followed.readers:
            self._drop(followed)

    def _drop(self, followed: Followed) -> None:
        self._disarm(followed)
        followed.task.cancel()
        siblings = self._followed.get(followed.relay.job_id, [])
        if followed in siblings:
            siblings.remove(followed)
            if not siblings:
                del self._followed[followed.relay.job_id]

    @staticmethod
    def _disarm(followed: Followed) -> None:
        if followed.timer is not None:
            followed.timer.cancel()
            followed.timer = None

    # --- the loop

    async def run(self, listener: Waiter) -> None:
        """Keep all relays informed, for ever."""
        self._listener = listener
        while True:
            await listener.wait(POLL_S if self._followed else IDLE_POLL_S)
            self.num_wakes += 1
            if self._followed:
                await self.look()

    async def look(self) -> None:
        """Read the rows of all followed jobs and tell their relays. A database that is away is asked again later."""
        try:
            rows = await self._rows.rows(list(self._followed))
        except Unavailable as error:
            log.warning("streams.database_failed", error=error.message)
            await self._clock.sleep(POLL_S / 2)
            return
        except Exception:  # the top of a loop: a fault of ours, and nobody would hear of moved jobs any more
            log.exception("streams.failed")
            for followed in [one for siblings in self._followed.values() for one in siblings]:
                followed.relay.finish(endings.broken(followed.relay.job_id))
                followed.task.cancel()
            return
        for row in rows:
            for followed in self._followed.get(row.id, ()):
                followed.relay.see(row)

    # --- the end

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nobody reads. False when the time is over first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def hand_over(self) -> None:
        """Tell all readers that this gateway leaves, and give their streams up. The jobs go on."""
        self._draining = True
        left = [followed for siblings in self._followed.values() for followed in siblings]
        open_jobs = {f.relay.job_id for f in left if f.relay.outcome is None}
        for followed in left:
            followed.relay.finish(self._leaving(followed.relay.job_id))
            self._disarm(followed)
            followed.task.cancel()
        await asyncio.gather(*(f.task for f in left), return_exceptions=True)
        await asyncio.gather(
            *(self._chores.insist(lambda j=job: self._store.detach(j, owner=self.owner), 1) for job in open_jobs)
        )
        log.info("streams.handed_over", num_streams=len(open_jobs))

    async def close(self) -> None:
        """Wait for what is still to be written."""
        self._draining = True
        for entry in self._readers.values():
            entry.timer.cancel()
        for followed in [f for siblings in self._followed.values() for f in siblings]:
            self._drop(followed)
        await self._chores.finish()

    @staticmethod
    def _leaving(job_id: UUID) -> Unavailable:
        return Unavailable(
            f"this gateway is about to end; job {job_id} goes on",
            code="DRAINING",
            hint="resume the stream by the job's id, here or at another gateway",
            retry_after_s=0.2,
        )
