"""Decides what every step computes. Pure: no clock, no tensors, no I/O; same state in, same plan out.

Puts the parts together: `arrivals` says what can run, a style fills each batch through the `planner`, `commits` moves
sequences forward.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_worker.engine.arrivals import check_request, make_sequence, max_rows, max_tokens_of
from octavo_worker.engine.batch import Batch
from octavo_worker.engine.blocks import BlockPool, root_hash
from octavo_worker.engine.commits import Committer
from octavo_worker.engine.endings import Endings, told
from octavo_worker.engine.integrity import check_integrity
from octavo_worker.engine.plan import NO_KV_DONE, BatchPlan, KVOps, StepResult
from octavo_worker.engine.planner import Planner
from octavo_worker.engine.ports import ExitPolicy, KVPlanner, QueuePolicy
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.searches import Searches
from octavo_worker.engine.sequence import Phase, ended_at_arrival
from octavo_worker.engine.snapshot import Snapshot, take_snapshot
from octavo_worker.engine.styles import MixedSteps, Style
from octavo_worker.engine.swapping import Swapper
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import (
    AdmissionError,
    Delta,
    FinishReason,
    Limits,
    Request,
    RequestId,
    SeqId,
    StepStats,
)


class Scheduler:
    """One pool, one queue, one style. Call plan and commit in turns."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        limits: Limits,
        queue: QueuePolicy,
        kv: KVPlanner,
        exit_policy: ExitPolicy,
        style: Style | None = None,
        num_host_slots: int = 0,
        lookahead: int = 0,
        extras: tuple[tuple[str, str], ...] = (),
        stretches_beyond: int | None = None,
    ) -> None:
        """``extras``: what cached content depends on beside tokens and salt: model digest, numerics id.

        With ``stretches_beyond`` the content of a prompt that is longer depends on its length, too.
        ``num_host_slots``: blocks that host memory has for preempted sequences; without any they are recomputed.
        """
        if limits.max_sequence_tokens + lookahead > pool.num_blocks * pool.block_size:
            raise ValueError("the pool is smaller than one sequence of max_sequence_tokens")
        self._style = style or MixedSteps()
        self.limits = self._style.fit(limits)
        self._pool = pool
        self._kv = kv
        self._lookahead = lookahead
        self._extras = extras
        self._stretches_beyond = stretches_beyond
        self._step = 0
        self._num_arrivals = 0
        self._roster = Roster(queue)
        self._tables = tables = Tables(pool, lookahead=lookahead)
        self._swapper = Swapper(tables, num_slots=num_host_slots)
        self._planner = Planner(limits=self.limits, roster=self._roster, tables=tables, swapper=self._swapper, kv=kv)
        self._endings = Endings(roster=self._roster, tables=tables, swapper=self._swapper, kv=kv)
        self._committer = Committer(
            limits=self.limits,
            roster=self._roster,
            tables=tables,
            searches=Searches(roster=self._roster, tables=tables, planner=self._planner, endings=self._endings),
            endings=self._endings,
            exit_policy=exit_policy,
        )
        self._stats = StepStats(num_free_blocks=pool.num_free)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._roster.known or self._roster.gone)

    def add(self, request: Request) -> list[Delta]:
        """Take a request. It ends at once if its output of earlier attempts (or max_tokens 0) says so.

        Raises AdmissionError when it can never run here.
        """
        if request.id in self._roster.requests:
            raise AdmissionError(f"request {request.id!r} is here already", code="DUPLICATE_REQUEST")
        if not request.prompt:
            limit = self.limits.max_sequence_tokens
            raise AdmissionError("the prompt is empty", code="EMPTY_PROMPT", limit=limit)
        reason = ended_at_arrival(request, self.limits.max_sequence_tokens)
        if reason is not None:
            num_results = 1 if request.beam is not None else max_rows(request)
            return [Delta(id=SeqId(request.id, choice), finish=reason) for choice in range(num_results)]
        check_request(request, self.limits, self._pool, lookahead=self._lookahead)
        seq = make_sequence(
            request,
            rank=(self._roster.queue.rank(request, arrival=self._num_arrivals, step=self._step), self._num_arrivals, 0),
            root=self._root(request),
            max_sequence_tokens=max_tokens_of(request, self.limits, self._pool, lookahead=self._lookahead),
        )
        self._num_arrivals += 1
        self._roster.arrive(seq, self._step)
        return []

    def _root(self, request: Request) -> bytes:
        num_prompt_tokens = len(request.prompt)
        is_stretched = self._stretches_beyond is not None and num_prompt_tokens > self._stretches_beyond
        length = (("prompt_length", str(num_prompt_tokens)),) if is_stretched else ()
        return root_hash((*self._extras, *length, ("salt", request.salt)))

    def abort(self, request_id: RequestId) -> list[Delta]:
        """End all choices of a request; its blocks are back when this returns. An unknown or ended one is no error."""
        deltas: list[Delta] = []
        for seq in tuple(self._roster.requests.get(request_id, ())):
            if seq.group is not None:
                return self._endings.end_group(seq.group, FinishReason.ABORTED)
            deltas.extend(self._endings.end_choice(seq, FinishReason.ABORTED))
        return deltas

    def abort_choice(self, seq_id: SeqId) -> list[Delta]:
        """End one choice; what only it holds is back when this returns, and the others of its request go on.

        Nothing happens to one that is unknown or has ended, that has not forked off yet, and to the beams of a search.
        """
        seq = self._roster.known.get(seq_id)
        if seq is None or seq.group is not None or len(seq.draws) > 1:
            return []
        return self._endings.end_choice(seq, FinishReason.ABORTED)

    def plan(self) -> BatchPlan:
        """What the next step computes. Preempts, and takes blocks; moves no sequence forward."""
        self._step += 1
        self._roster.age(self._step)
        batch = Batch(budget=self.limits.max_batch_tokens, prompt_budget=self.limits.max_batch_tokens)
        self._style.fill(batch, self._planner)
        gone, self._roster.gone = tuple(self._roster.gone), []
        self._stats = StepStats(
            step=self._step,
            num_decode_tokens=batch.num_decode_tokens,
            num_prompt_tokens=batch.num_prompt_tokens,
            num_preempted=batch.num_preempted,
            num_rows=len(batch.rows),
            num_swapped=batch.num_swapped,
            num_asked_tokens=batch.num_asked_tokens,
            num_found_tokens=batch.num_found_tokens,
        )
        return BatchPlan(
            step=self._step,
            rows=tuple(batch.rows.values()),
            kv=self._take_ops(batch),
            forks=self._roster.take_forks(),
            gone=gone,
        )

    def _take_ops(self, batch: Batch) -> KVOps:
        ops = self._kv.take_ops()
        stores, loads = self._swapper.take_ops()
        if not (stores or loads or batch.copies):
            return ops
        return replace(
            ops,
            stores_out=(*ops.stores_out, *stores),
            copies=(*ops.copies, *batch.copies.values()),
            loads=(*ops.loads, *loads),
        )

    def commit(self, plan: BatchPlan, result: StepResult) -> list[Delta]:
        """Move the planned sequences forward by what the executor reports."""
        if self._planner.arriving:
            self._swapper.on_loaded()
            for seq in self._planner.arriving:
                if seq.phase is Phase.AWAITING_KV:
                    seq.phase = Phase.RUNNING
                    self._tables.seal(seq)
            self._planner.arriving.clear()
        deltas = self._committer.commit(plan, result)
        # Sequences that only lost their place have something to report too.
        displaced, self._planner.displaced = self._planner.displaced, []
        for seq in displaced:
            if seq.story.events and seq.phase is not Phase.FINISHED:
                choice = seq.id.choice if seq.group is None else 0
                deltas.append(told(SeqId(seq.id.request, choice), seq.story))
        if result.kv is not NO_KV_DONE:
            self._kv.on_done(result.kv)
            for seq_id in result.kv.saved:
                self._pool.release(reversed(self._endings.held.pop(seq_id, [])))
        return deltas

    def stats(self) -> StepStats:
        """The last plan's figures, with the pool and the queues as they are now."""
        return replace(
            self._stats,
            num_running=len(self._roster.running),
            num_waiting=self._roster.num_waiting,
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_used_blocks=self._pool.num_used,
        )

    def snapshot(self) -> Snapshot:
        """Who holds which block now."""
        return take_snapshot(
            step=self._step,
            pool=self._pool,
            sequences=self._roster.known.values(),
            num_host_slots=self._swapper.num_slots,
            num_free_host_slots=self._swapper.num_free,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance. Callable between any two calls."""
        check_integrity(
            pool=self._pool,
            limits=self.limits,
            roster=self._roster,
            swapper=self._swapper,
            held=self._endings.held.values(),
        )
