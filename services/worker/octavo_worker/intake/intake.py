"""Claims this worker's jobs, follows the engine's deltas, and ends every job exactly once under its fence.

Runs on the event loop; the engine runs on its own thread and is reached through EngineLoop alone. Knows no streams:
they read the logs that are written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from uuid import UUID

import structlog
from opentelemetry.trace import Tracer

from octavo_common.clock import Clock
from octavo_common.errors import OctavoError
from octavo_common.jobs.model import Claimed, HeartbeatAnswer, Held, Job
from octavo_common.jobs.spec import JobFailure, ModelCard
from octavo_common.jobs.transitions import DEADLINE
from octavo_common.store import WorkStore
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Delta, FinishReason, Request, SeqId, StepStats
from octavo_worker.intake.attempt import Attempt, new_attempt
from octavo_worker.intake.failures import failure_of, failure_of_engine, readable_spec, refusal
from octavo_worker.intake.grammars import Compiles, GrammarLine
from octavo_worker.intake.meters import Meters
from octavo_worker.intake.outbox import Outbox
from octavo_worker.intake.recent import RecentPrefixes
from octavo_worker.intake.trace import JobTrace
from octavo_worker.joblog import End, LogBook
from octavo_worker.records import Records, StepRecord

log = structlog.get_logger(__name__)

# Rows beyond the capacity are claimed too, to be given back at once: unclaimed ones would be lost with their lease.
NUM_BEYOND = 32
CANCELLED = End()


class Computing(Protocol):
    """The part of EngineLoop that is used here."""

    def submit(self, request: Request) -> None:
        """Take a request."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request at any stage."""
        ...

    def abort_choice(self, seq_id: SeqId) -> None:
        """End one choice; the others of its request go on."""
        ...


class Intake:
    """All jobs of this worker."""

    def __init__(
        self,
        *,
        worker_id: UUID,
        store: WorkStore,
        engine: Computing,
        tokenizer: Tokenizer,
        eos_ids: tuple[int, ...],
        card: ModelCard,
        grammars: Compiles,
        max_jobs: int,
        book: LogBook,
        records: Records,
        meters: Meters,
        tracer: Tracer,
        clock: Clock,
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._engine = engine
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._card = card
        self._grammars = GrammarLine(grammars)
        self._max_jobs = max_jobs
        self._book = book
        self._records = records
        self._meters = meters
        self._tracer = tracer
        self._clock = clock
        self._attempts: dict[UUID, Attempt] = {}
        self._by_request: dict[str, Attempt] = {}
        self._recent = RecentPrefixes()
        self._outbox = Outbox(store, clock)
        self._draining = False
        # Called when the last job has gone.
        self.on_idle: Callable[[], None] = _nothing
        # Called when a job that was lost without progress has made some: others like it wait until the table knows.
        self.on_cleared: Callable[[], None] = _nothing

    @property
    def num_held(self) -> int:
        """Jobs that the worker answers for."""
        return len(self._attempts)

    # --- what the heartbeat asks

    def held(self) -> list[Held]:
        """Every job that the worker answers for, also those whose end is on its way."""
        return [attempt.held for attempt in self._attempts.values()]

    def load(self) -> Mapping[str, Any]:
        """Figures for placement. A cached block counts as free: whoever needs it gets it."""
        stats = self._meters.stats
        # Jobs, as the engine's waiting ones are; its running ones are rows, several of which may be one job's.
        num_unbegun = sum(attempt.first_step_s is None and not attempt.ending for attempt in self._attempts.values())
        return {
            "num_running": stats.num_running,
            "num_waiting": max(stats.num_waiting, num_unbegun),
            "num_free_blocks": stats.num_free_blocks + stats.num_cached_blocks,
            "num_total_blocks": self._card.num_blocks,
            "prefix_keys": self._recent.keys(),
        }

    def on_answer(self, sent: list[Held], answer: HeartbeatAnswer) -> None:
        """Drop what was lost and end what was cancelled. An attempt that came after the question is not meant."""
        for held in sent:
            attempt = self._attempts.get(held.job_id)
            if attempt is None or attempt.job.fence != held.fence or attempt.ending:
                # An end on its way learns by its own answer.
                continue
            if held.job_id in answer.lost:
                self._drop(attempt, "lost")
            elif held.job_id in answer.cancelled:
                self._end(attempt, CANCELLED)

    # --- jobs come

    async def claim(self) -> int:
        """Take what was assigned; what does not fit, or comes while draining, is given back. Returns how many came."""
        room = 0 if self._draining else max(0, self._max_jobs - len(self._attempts))
        # A crash of the database may lose the claims of all that is held: those come once more, and are made again.
        limit = len(self._attempts) + room + NUM_BEYOND
        claimed = await self._store.claim(self._worker_id, limit, held=list(self._attempts))
        new = [item for item in claimed if not self._goes_on(item.job)]
        for item in new[:room]:
            self._start(item)
        for item in new[room:]:
            log.info("job.not_taken", job_id=str(item.job.id), draining=self._draining)
            with suppress(OctavoError):  # the lease brings it back
                await self._store.release(item.job.id, item.job.fence, None)
        self._book.expire()
        return len(claimed)

    def _goes_on(self, job: Job) -> bool:
        """Whether a claim says nothing new: the job runs here under the same fence."""
        attempt = self._attempts.get(job.id)
        return attempt is not None and attempt.job.fence == job.fence

    def _start(self, claimed: Claimed) -> None:
        job, now = claimed.job, self._clock.monotonic()
        older = self._attempts.get(job.id)
        if older is not None:
            self._drop(older, "came back under a new fence")
        spec, unreadable = readable_spec(job)
        trace = JobTrace(self._tracer, self._clock, claimed, spec, worker_id=str(self._worker_id))
        attempt = new_attempt(claimed, spec, tokenizer=self._tokenizer, trace=trace, now=now)
        self._attempts[job.id] = self._by_request[attempt.request_id] = attempt
        self._book.open(attempt.log)
        self._recent.add(job.prefix_keys)
        log.info("job.claimed", job_id=str(job.id), fence=job.fence, wait_s=round(claimed.wait_s, 4))
        failure = unreadable or refusal(claimed, max_sequence_tokens=self._card.max_sequence_tokens)
        if failure is not None:
            self._end(attempt, End(failure=failure))
        elif job.cancel_requested:
            self._end(attempt, CANCELLED)
        elif attempt.replay():
            self._end(attempt, End(result=attempt.result()))
        else:
            if claimed.deadline_in_s is not None:
                attempt.deadline = asyncio.create_task(self._expire(attempt, claimed.deadline_in_s))
            if spec.grammar is None:
                self._engine.submit(attempt.request(self._eos_ids))
            else:
                attempt.preparing = asyncio.create_task(self._prepare(attempt))

    async def _prepare(self, attempt: Attempt) -> None:
        """Compile what the answer must follow, then let the engine have the job."""
        try:
            grammar = await self._grammars.compile(attempt.spec.grammar)
        except OctavoError as error:
            self._end(attempt, End(failure=failure_of(error)))
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # foreign code, whose panics are no Exceptions: the job ends by it, the worker does not
            log.exception("job.grammar_failed", job_id=str(attempt.job.id))
            failure = JobFailure(code="GRAMMAR_FAILED", message="the grammar could not be compiled")
            self._end(attempt, End(failure=failure))
        else:
            if not attempt.ending:
                self._engine.submit(attempt.request(self._eos_ids, grammar=grammar))

    async def _expire(self, attempt: Attempt, deadline_in_s: float) -> None:
        await self._clock.sleep(deadline_in_s)
        self._end(attempt, End(failure=DEADLINE))

    # --- the engine speaks

    def on_step(self, deltas: list[Delta], stats: StepStats, step_s: float) -> None:
        """A step ended, or (step_s 0) an add or abort had something to say. All tokens of a step go out together."""
        now = self._clock.monotonic()
        self._meters.stats = stats
        if step_s > 0:
            self._records.add(StepRecord(time_s=self._clock.time(), duration_s=step_s, stats=stats))
            self._meters.step(stats, step_s)
        for delta in deltas:
            attempt = self._by_request.get(delta.id.request)
            if attempt is not None and not attempt.ending and not attempt.is_surplus(delta):
                self._follow(attempt, delta, now, step_s)
        for delta in deltas:
            if delta.finish is None:
                continue
            # All of what a beam search found comes in one step.
            attempt = self._by_request.get(delta.id.request)
            if attempt is not None and not attempt.ending and attempt.close_search():
                self._end(attempt, End(result=attempt.result()), computing=False)

    def _follow(self, attempt: Attempt, delta: Delta, now: float, step_s: float) -> None:
        attempt.note(delta, now - step_s)
        attempt.trace.step(delta, step_s)
        self._meters.tokens(attempt, delta, now)
        if delta.finish is FinishReason.ERROR:
            log.error("job.engine_error", job_id=str(attempt.job.id), error=delta.error, refusal=delta.refusal)
            self._end(attempt, End(failure=failure_of_engine(delta)), computing=len(attempt.choices) > 1)
            return
        if delta.prompt_logprobs:
            attempt.note_prompt(delta.prompt_logprobs)
        choice = attempt.choices[delta.id.choice]
        # Until the engine hears that a stop string has ended an answer it goes on with it.
        was_running = choice.reason is None
        if delta.tokens and was_running:
            attempt.push(delta, now)
            if attempt.clears_itself():
                self.on_cleared()
        if delta.finish in (FinishReason.STOP, FinishReason.LENGTH):
            attempt.finish(delta)
        elif delta.finish is FinishReason.ABORTED:
            choice.computed = True
        if attempt.is_over:
            self._end(attempt, End(result=attempt.result()), computing=not attempt.is_computed)
        elif was_running and choice.reason is not None and not choice.computed:
            # What it holds is for the others.
            self._engine.abort_choice(delta.id)

    # --- jobs go

    def _end(self, attempt: Attempt, end: End, *, computing: bool = True) -> None:
        """Stop computing, and bring the end into the table."""
        if attempt.ending:
            return
        attempt.ending = True
        self._stop_work(attempt, computing=computing)
        self._outbox.send(attempt, end, self._on_sent)

    def _on_sent(self, attempt: Attempt, end: End | None) -> None:
        """The table has taken the end, or (None) says that the job is not ours any more."""
        if end is None:
            self._drop(attempt, "lost")
            return
        self._forget(attempt)
        if end.result is not None:
            attempt.publish()
        attempt.log.finish(end)
        num_tokens = attempt.num_tokens
        outcome, code = "cancelled", ""
        if end.result is not None:
            outcome = end.result.finish_reason
            self._meters.succeeded(attempt, outcome)
        elif end.failure is not None:
            outcome, code = "failed", end.failure.code
            self._meters.failed(end.failure)
        attempt.trace.end(outcome, num_tokens=num_tokens, num_cached=attempt.num_cached, error_code=code)
        log.info("job.ended", job_id=str(attempt.job.id), outcome=outcome, num_tokens=num_tokens, code=code)

    def _drop(self, attempt: Attempt, reason: str) -> None:
        """The job is somebody else's: nothing of it may leave."""
        log.info("job.dropped", job_id=str(attempt.job.id), fence=attempt.job.fence, reason=reason)
        attempt.ending = True
        self._stop_work(attempt)
        self._forget(attempt)
        attempt.log.drop(reason)
        attempt.trace.end(reason, num_tokens=attempt.num_tokens, num_cached=attempt.num_cached)

    def _stop_work(self, attempt: Attempt, *, computing: bool = True) -> None:
        if computing:
            self._engine.abort(attempt.request_id)
        for task in (attempt.deadline, attempt.preparing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._by_request.pop(attempt.request_id, None)

    def _forget(self, attempt: Attempt) -> None:
        if self._attempts.get(attempt.job.id) is attempt:
            del self._attempts[attempt.job.id]
            if not self._attempts:
                self.on_idle()
        self._book.close(attempt.log)

    async def drain(self, timeout_s: float, *, give_back: bool = True) -> None:
        """Take nothing more, give every job back with its released tokens, and bring the ends that are on their way.

        Without give_back the jobs are left to their leases: their loss counts.
        """
        self._draining = True
        self._book.shut()
        running = [attempt for attempt in self._attempts.values() if not attempt.ending]
        for attempt in running:
            # From here on its log grows no more: what readers have is what the row gets.
            attempt.ending = True
            self._stop_work(attempt)
        with suppress(TimeoutError, OctavoError):
            async with asyncio.timeout(timeout_s):
                if give_back:
                    await asyncio.gather(*(self._give_back(attempt) for attempt in running))
                    await self.claim()
                await self._outbox.flush()
        # What is left goes with the leases.
        await self._outbox.stop()
        for attempt in list(self._attempts.values()):
            self._drop(attempt, "left")
        self._grammars.close()

    async def _give_back(self, attempt: Attempt) -> None:
        with suppress(OctavoError):
            first_s = attempt.first_token_s
            ago_s = None if attempt.job.emitted_ids or first_s is None else self._clock.monotonic() - first_s
            await self._store.release(attempt.job.id, attempt.job.fence, attempt.emitted_ids, first_token_ago_s=ago_s)
        self._drop(attempt, "released")


def _nothing() -> None:
    pass
