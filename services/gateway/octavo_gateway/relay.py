"""Follows one job's output from worker to worker until the job ends.

A relay attaches to the job's worker, logs what comes, and when the worker is lost resumes the job with what it has: the
readers of its log see a pause, never an error or a repeated token. Knows no clients; it reads ahead of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import OctavoError, Status
from octavo_common.jobs.model import HELD, JobState, OwnedJob, Resumption
from octavo_common.jobs.spec import GenerationResult, JobFailure
from octavo_common.rpc import deadline
from octavo_gateway import endings
from octavo_gateway.contact import Rows
from octavo_gateway.convert import finish_of
from octavo_gateway.tape import Tape
from octavo_gateway.values import Ended, Finish, TokenPiece
from octavo_gateway.workers import JobElsewhere, PrefixDiffers, StreamBroken, WorkerPool, WorkerStream

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Pauses between tries at a worker that still accepts connections; after them the job is resumed.
RETRY_PAUSES_S = (0.0, 0.05, 0.2)
# The last message follows the commit within milliseconds; an ended row without it for so long means a lost worker.
LAST_MESSAGE_S = 2.0
DATABASE_PAUSE_S = 0.5
# Reasons to resume that a living worker has given: others may go on being placed there.
ANSWERED = ("job_gone", "other_prefix")
# Further resumptions would only make two streams of one job fight each other.
MAX_OTHER_PREFIX = 2


class Relay:
    """One job's log at this gateway. `run` fills it; readers wait for `changed` and look at `entries` and `outcome`."""

    def __init__(
        self,
        *,
        job_id: UUID,
        owner: UUID,
        received: Sequence[Sequence[int]],
        restarts: bool,
        is_exact: Callable[[UUID, UUID], Awaitable[bool]],
        count_chars: Callable[[Sequence[int]], Awaitable[int]],
        on_resumed: Callable[[], None],
        store: Rows,
        workers: WorkerPool,
        clock: Clock,
        is_new: bool = False,
        is_queued: bool = False,
        row: OwnedJob | None = None,
    ) -> None:
        """``received``: what a reader has of each answer. ``restarts``: the job begins anew from its prompt when its
        worker is lost, and ``is_exact`` says whether two workers give the same tokens. ``is_new``: the job was accepted
        just now. ``is_queued``: it also waits, and the hub read no row since. ``row``: what its row says, if known.
        """
        self.job_id = job_id
        self.tapes = tuple(Tape(ids) for ids in received)
        # What ended it: a Finish, or the error for its readers.
        self.outcome: Finish | OctavoError | None = None
        self._restarts = restarts
        self._is_exact = is_exact
        # What the row said when the first token came, of those that came here.
        self._row_of_tokens: OwnedJob | None = None
        self._count_chars = count_chars
        self._on_resumed = on_resumed
        self._owner = owner
        self._store = store
        self._workers = workers
        self._clock = clock
        self._row = row
        self._is_new = is_new
        self._is_queued = is_queued
        self._first_token_s: float | None = None
        self._row_news = asyncio.Event()
        self._changed = asyncio.Event()
        self._stream: WorkerStream | None = None
        self._attached: OwnedJob | None = None
        self._ended_seen_s: float | None = None
        self._num_other_prefix = 0

    # --- what readers use

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next entry or the outcome; take a new one after looking."""
        return self._changed

    def positions_of(self, received: Sequence[Sequence[int]]) -> list[int] | None:
        """Index of the first entry after these tokens in each tape, or None if they cannot be read from there."""
        if len(received) != len(self.tapes):
            return None
        found = [tape.position_of(ids) for tape, ids in zip(self.tapes, received, strict=True)]
        positions = [position for position in found if position is not None]
        return positions if len(positions) == len(found) else None

    @property
    def num_sent(self) -> int:
        """Tokens of all answers that are known here."""
        return sum(len(tape.ids) for tape in self.tapes)

    def finish(self, outcome: Finish | OctavoError) -> None:
        """End the log; the first outcome stays."""
        if self.outcome is None:
            self.outcome = outcome
            self._notify()

    # --- what the hub tells

    def see(self, row: OwnedJob) -> None:
        """Take note of what the row says now. Leaves a worker that has lost the job and does not say so."""
        self._row = row
        self._row_news.set()
        if self._attached is not None and self._stream is not None and self._moved(self._attached, row):
            log.info("stream.left_worker", job_id=str(self.job_id), fence=self._attached.fence, now=row.fence)
            self._stream.cancel()

    def _moved(self, attached: OwnedJob, row: OwnedJob) -> bool:
        if row.fence != attached.fence:
            return True
        if row.state.ended and row.state is not JobState.CANCELLED:
            now = self._clock.monotonic()
            if self._ended_seen_s is None:
                self._ended_seen_s = now
            return now - self._ended_seen_s >= LAST_MESSAGE_S
        return row.state.ended or not row.worker_alive

    # --- the loop

    async def run(self) -> None:
        """Follow the job until its end. Ends with an outcome whatever happens, unless it is cancelled."""
        # The relay outlives the call that started it.
        deadline.leave()
        try:
            if self._is_queued:
                await self._news()
            while self.outcome is None:
                await self._follow()
        except OctavoError as error:
            self.finish(error)
        except Exception:  # the top of a loop: readers must not wait for ever
            log.exception("stream.failed", job_id=str(self.job_id))
            self.finish(endings.broken(self.job_id))

    async def _follow(self) -> None:
        row = self._row or await self._refresh()
        if row is None:
            return
        if row.state.ended:
            await self._end_from_row(row)
        elif row.state not in HELD:
            await self._news()
        elif self._begins_anew(row) and not await self._comes_again(row):
            raise endings.restarted(self.job_id)
        elif not row.worker_address:
            await self._resume(row, "worker_unregistered")
        elif not row.worker_alive:
            await self._resume(row, "worker_silent")
        else:
            reason = await self._attach(row)
            if reason is not None:
                await self._resume(row, reason)

    def _begins_anew(self, row: OwnedJob) -> bool:
        """Tokens were sent that the job, under its new fence, chooses again."""
        return self._restarts and self._row_of_tokens is not None and row.fence > self._row_of_tokens.fence

    async def _comes_again(self, row: OwnedJob) -> bool:
        """Whether the row's worker chooses the tokens that were sent."""
        before = None if self._row_of_tokens is None else self._row_of_tokens.worker_id
        return before is not None and row.worker_id is not None and await self._is_exact(before, row.worker_id)

    async def _attach(self, row: OwnedJob) -> str | None:
        """Read from the row's worker while it answers. Returns why to resume the job, or None if there is news."""
        for pause in RETRY_PAUSES_S:
            if pause:
                await self._clock.sleep(pause)
            num_before = self.num_sent
            try:
                await self._read(row)
                return None
            except JobElsewhere:
                return None if await self._is_news(row) else "job_gone"
            except PrefixDiffers:
                if await self._is_news(row):
                    return None
                self._num_other_prefix += 1
                if self._num_other_prefix > MAX_OTHER_PREFIX:
                    raise endings.diverged(self.job_id) from None
                return "other_prefix"
            except StreamBroken as error:
                log.info("stream.broken", job_id=str(self.job_id), fence=row.fence, reason=str(error))
                if self._row is not row and self._row is not None and self._moved(row, self._row):
                    return None
                self._workers.forget(row.worker_address)
                if not await self._workers.answers(row.worker_address):
                    break
            if self.num_sent > num_before:
                # It works, and was only cut: begin again with all tries.
                return None
        return None if await self._is_news(row) else "worker_gone"

    async def _read(self, row: OwnedJob) -> None:
        prefix = [tape.ids for tape in self.tapes]
        with self._workers.stream(row.worker_address, job_id=self.job_id, fence=row.fence, prefix=prefix) as stream:
            self._stream, self._attached, self._ended_seen_s = stream, row, None
            log.debug("stream.attached", job_id=str(self.job_id), fence=row.fence, num_sent=self.num_sent)
            try:
                async for message in stream.messages():
                    self._take(message.piece, row)
                    if message.end is not None:
                        self._end(message.end)
                        return
            finally:
                self._stream = self._attached = None
        raise StreamBroken("closed without an end")

    def _take(self, piece: TokenPiece, row: OwnedJob) -> None:
        if piece.is_empty:
            return
        if piece.choice >= len(self.tapes):
            raise AssertionError(f"job {self.job_id} has no answer number {piece.choice}")
        if piece.token_ids and self._row_of_tokens is None:
            self._row_of_tokens = row
            self._first_token_s = self._clock.monotonic()
        self.tapes[piece.choice].take(piece)
        self._notify()

    def _end(self, end: Finish | Ended) -> None:
        if isinstance(end, Finish):
            self.finish(end)
        else:
            self.finish(endings.without_result(self.job_id, end.failure))

    async def _end_from_row(self, row: OwnedJob) -> None:
        """Send what the readers lack from the row; the worker's log is gone."""
        if row.state is not JobState.SUCCEEDED:
            failed = row.state is JobState.FAILED and row.error is not None
            failure = JobFailure.from_json(dict(row.error or {})) if failed else None
            self.finish(endings.without_result(self.job_id, failure))
            return
        if row.result is None:
            raise endings.expired(self.job_id)
        result = GenerationResult.from_json(dict(row.result))
        answers = result.choices
        if len(answers) != len(self.tapes):
            raise endings.diverged(self.job_id)
        if any(list(a.token_ids[: len(t.ids)]) != t.ids for a, t in zip(answers, self.tapes, strict=True)):
            raise endings.diverged(self.job_id)
        for number, (answer, tape) in enumerate(zip(answers, self.tapes, strict=True)):
            num_chars, count = tape.num_chars, len(tape.ids)
            if tape.num_before:
                num_chars += await self._count_chars(tape.ids[: tape.num_before])
            piece = TokenPiece(
                choice=number,
                first_token=count,
                token_ids=answer.token_ids[count:],
                text=answer.text[num_chars:],
                logprobs=answer.logprobs[count:],
                prompt_logprobs=result.prompt_logprobs if tape.is_untouched else (),
            )
            self._take(piece, row)
        self.finish(finish_of(result))

    async def _resume(self, row: OwnedJob, reason: str) -> None:
        """Queue the job again with what this gateway has; when somebody was first, act on what the row says."""
        how = Resumption(
            owner=self._owner,
            fence=row.fence,
            emitted_ids=() if self._restarts else tuple(self.tapes[0].ids),
            worker_dead=reason not in ANSWERED,
            why=reason,
            first_token_ago_s=self._first_token_ago_s(),
        )
        job = await self._database(self._store.resume(self.job_id, how))
        if job is not None:
            log.info("stream.resumed", job_id=str(self.job_id), reason=reason, fence=job.fence, num_sent=self.num_sent)
            self._on_resumed()
            await self._refresh()
        elif not await self._is_news(row):
            # Another gateway owns the stream by now: let it act, and follow.
            await self._news()

    def _first_token_ago_s(self) -> float | None:
        """How long the job's first token is known; None if there is none, or it was made before this relay looked."""
        if not self._is_new or self._first_token_s is None:
            return None
        return self._clock.monotonic() - self._first_token_s

    # --- rows

    async def _is_news(self, row: OwnedJob) -> bool:
        now = await self._refresh()
        return now is None or now.fence != row.fence or now.state.ended or now.worker_id != row.worker_id

    async def _refresh(self) -> OwnedJob | None:
        """Read the row. None when the database does not answer."""
        self._row_news.clear()
        rows = await self._database(self._store.rows([self.job_id]))
        if rows is None:
            return None
        if not rows:
            raise endings.forgotten(self.job_id)
        self._row = rows[0]
        return self._row

    async def _news(self) -> None:
        """Wait until the hub has read the row again."""
        await self._row_news.wait()
        self._row_news.clear()

    async def _database(self, call: Awaitable[T]) -> T | None:
        """A call of the store; None after a pause when the database is away: the caller's loop comes back.

        What the store has no name for is a fault of ours, and would be one the next time.
        """
        try:
            return await call
        except OctavoError as error:
            if error.status is not Status.UNAVAILABLE:
                raise
            log.warning("stream.database_failed", job_id=str(self.job_id), error=error.message)
            await self._clock.sleep(DATABASE_PAUSE_S)
            return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
