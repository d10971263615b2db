"""Decides what every step computes. Pure: no clock, no tensors, no I/O; same state in, same plan out.

Three passes share one token budget: rows that only decode, running rows with more pending, then waiting ones.
"""

from __future__ import annotations

from octavo_worker.engine.batch import Batch
from octavo_worker.engine.blocks import BlockPool, root_hash
from octavo_worker.engine.integrity import check_integrity
from octavo_worker.engine.plan import NO_DRAFT, NO_KV_DONE, BatchPlan, Draft, RowPlan, RowResult, StepResult
from octavo_worker.engine.ports import ExitPolicy, KVPlanner, QueuePolicy
from octavo_worker.engine.sequence import Phase, Sequence, ended_at_arrival
from octavo_worker.engine.types import (
    AdmissionError,
    BlockId,
    Delta,
    FinishReason,
    Limits,
    Request,
    RequestId,
    SeqId,
    StepStats,
    Token,
)


class Scheduler:
    """The mixed-batch policy (v1) over one pool. Call plan and commit in turns."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        limits: Limits,
        queue: QueuePolicy,
        kv: KVPlanner,
        exit_policy: ExitPolicy,
        lookahead: int = 0,
        extras: tuple[tuple[str, str], ...] = (),
        stretches_beyond: int | None = None,
    ) -> None:
        """``extras``: what cached content depends on beside tokens and salt: model digest, numerics id.

        With ``stretches_beyond`` the content of a prompt that is longer depends on its length, too.
        """
        if limits.max_sequence_tokens + lookahead > pool.num_blocks * pool.block_size:
            raise ValueError("the pool is smaller than one sequence of max_sequence_tokens")
        self.limits = limits
        self._pool = pool
        self._queue = queue
        self._kv = kv
        self._exit = exit_policy
        self._lookahead = lookahead
        self._extras = extras
        self._stretches_beyond = stretches_beyond
        self._step = 0
        self._num_arrivals = 0
        self._sequences: dict[SeqId, Sequence] = {}
        # In order of rank.
        self._running: list[Sequence] = []
        # Blocks of ended sequences that the planner still needs.
        self._held: dict[SeqId, list[BlockId]] = {}
        self._gone: list[SeqId] = []
        self._stats = StepStats(num_free_blocks=pool.num_free)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences or self._gone)

    def add(self, request: Request) -> list[Delta]:
        """Take a request. It ends at once if its output of earlier attempts (or max_tokens 0) says so.

        Raises AdmissionError when it can never run here.
        """
        seq_id = SeqId(request.id, 0)
        limit = self.limits.max_sequence_tokens
        if seq_id in self._sequences:
            raise AdmissionError(f"request {request.id!r} is here already", code="DUPLICATE_REQUEST")
        if not request.prompt:
            raise AdmissionError("the prompt is empty", code="EMPTY_PROMPT", limit=limit)
        reason = ended_at_arrival(request, limit)
        if reason is not None:
            return [Delta(id=seq_id, finish=reason)]
        if len(request.prompt) >= limit:
            num_tokens = len(request.prompt)
            message = f"the prompt has {num_tokens} tokens, and a sequence has at most {limit}"
            raise AdmissionError(message, code="PROMPT_TOO_LONG", num_tokens=num_tokens, limit=limit)
        seq = Sequence(
            request=request,
            id=seq_id,
            rank=self._queue.rank(request, arrival=self._num_arrivals, step=self._step),
            root=self._root(request),
            tokens=[*request.prompt, *request.output],
        )
        self._num_arrivals += 1
        self._sequences[seq_id] = seq
        self._queue.push(seq)
        return []

    def _root(self, request: Request) -> bytes:
        num_prompt_tokens = len(request.prompt)
        is_stretched = self._stretches_beyond is not None and num_prompt_tokens > self._stretches_beyond
        length = (("prompt_length", str(num_prompt_tokens)),) if is_stretched else ()
        return root_hash((*self._extras, *length, ("salt", request.salt)))

    def abort(self, request_id: RequestId) -> list[Delta]:
        """End a request; its blocks are back when this returns. An unknown or ended request is left alone."""
        seq = self._sequences.get(SeqId(request_id, 0))
        if seq is None:
            return []
        self._end(seq, FinishReason.ABORTED)
        return [self._delta(seq)]

    def plan(self) -> BatchPlan:
        """What the next step computes. Preempts, and takes blocks; moves no sequence forward."""
        self._step += 1
        batch = Batch(budget=self.limits.max_batch_tokens, prompt_budget=self.limits.max_batch_tokens)
        decoding = [seq for seq in self._running if seq.num_pending == 1]
        # Drafts leave a token for each row, so that none is starved by the guesses of others.
        draft_budget = batch.budget - len(self._running)
        for seq in decoding:
            draft = seq.draft.head(max(0, min(draft_budget, self._room_for_drafts(seq))))
            if self._plan_row(batch, seq, 1, draft):
                draft_budget -= len(draft)
        if batch.rows:
            batch.prompt_budget = min(batch.budget, self.limits.max_prompt_tokens_beside_decode)
        for seq in [seq for seq in self._running if seq.num_pending > 1]:
            self._plan_chunk(batch, seq)
        # Who was preempted is the first to come back; not in the step that took its blocks.
        if not batch.num_preempted:
            self._admit(batch)
        gone, self._gone = tuple(self._gone), []
        self._stats = StepStats(
            step=self._step,
            num_decode_tokens=batch.num_decode_tokens,
            num_prompt_tokens=batch.num_prompt_tokens,
            num_preempted=batch.num_preempted,
        )
        return BatchPlan(step=self._step, rows=tuple(batch.rows.values()), kv=self._kv.take_ops(), gone=gone)

    def commit(self, plan: BatchPlan, result: StepResult) -> list[Delta]:
        """Move the planned sequences forward by what the executor reports."""
        deltas: list[Delta] = []
        for row in plan.rows:
            seq = self._sequences.get(row.id)
            # It may have been aborted since it was planned.
            if seq is not None and seq.phase is Phase.RUNNING:
                deltas.append(self._commit_row(seq, row, result.rows.get(row.id)))
        # Sequences that only lost their place have something to report too.
        deltas.extend(self._delta(seq) for seq in self._sequences.values() if seq.events)
        if result.kv is not NO_KV_DONE:
            self._kv.on_done(result.kv)
            for seq_id in result.kv.saved:
                self._pool.release(reversed(self._held.pop(seq_id, [])))
        return deltas

    def stats(self) -> StepStats:
        """The last plan's figures, with the pool and the queues as they are now."""
        last = self._stats
        return StepStats(
            step=last.step,
            num_decode_tokens=last.num_decode_tokens,
            num_prompt_tokens=last.num_prompt_tokens,
            num_preempted=last.num_preempted,
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_used_blocks=self._pool.num_used,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance. Callable between any two calls."""
        check_integrity(
            pool=self._pool,
            limits=self.limits,
            waiting=list(self._queue),
            running=self._running,
            known=self._sequences,
            held=self._held.values(),
        )

    # Planning

    def _room_for_drafts(self, seq: Sequence) -> int:
        """Drafts that could still become output: one token follows the last accepted one."""
        to_max_tokens = seq.request.params.max_tokens - seq.num_output
        return min(to_max_tokens, self.limits.max_sequence_tokens - len(seq.tokens)) - 1

    def _plan_chunk(self, batch: Batch, seq: Sequence) -> None:
        num_tokens = min(seq.num_pending, self._room(batch, seq))
        if self.limits.max_chunk_tokens is not None:
            num_tokens = min(num_tokens, self.limits.max_chunk_tokens)
        # A preempted row is not running any more.
        if num_tokens > 0 and seq.phase is Phase.RUNNING:
            self._plan_row(batch, seq, num_tokens, NO_DRAFT)

    @staticmethod
    def _room(batch: Batch, seq: Sequence) -> int:
        """Tokens that the step still has for a sequence with more than one pending.

        A resumed one may take all: its stream stands still, and those that decode beside it pause for less than that.
        """
        return batch.budget if seq.is_behind else min(batch.budget, batch.prompt_budget)

    def _plan_row(self, batch: Batch, seq: Sequence, num_tokens: int, draft: Draft) -> bool:
        if seq.phase is not Phase.RUNNING or not self._ensure_blocks(batch, seq, num_tokens, len(draft)):
            return False
        batch.take(self._row(seq, num_tokens, draft), decodes=seq.num_pending == 1)
        return True

    def _row(self, seq: Sequence, num_tokens: int, draft: Draft) -> RowPlan:
        end = seq.num_computed + num_tokens
        return RowPlan(
            id=seq.id,
            start=seq.num_computed,
            tokens=tuple(seq.tokens[seq.num_computed : end]),
            draft=draft,
            first_block=seq.num_told_blocks,
            new_blocks=tuple(seq.table[seq.num_told_blocks :]),
            wants=range(end - 1, end) if end == len(seq.tokens) else range(0),
            params=None if seq.is_told else seq.request.params,
            num_prompt_tokens=len(seq.request.prompt),
        )

    def _ensure_blocks(self, batch: Batch, seq: Sequence, num_tokens: int, num_drafts: int) -> bool:
        """Give the row the blocks it writes to, at the cost of the youngest; False if that was the row itself."""
        end = seq.num_computed + num_tokens
        ahead = max(num_drafts, self._lookahead) if end == len(seq.tokens) else 0
        missing = self._pool.blocks_for(end + ahead) - len(seq.table)
        if missing <= 0:
            return True
        while not self._pool.can_alloc(missing):
            victim = self._running[-1]
            planned = batch.rows.get(victim.id)
            if planned is not None:
                batch.refund(planned, decodes=victim.num_pending == 1)
            self._preempt(victim)
            batch.num_preempted += 1
            if victim is seq:
                return False
        seq.table.extend(self._pool.alloc(missing))
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Take all blocks back; the sequence is computed again later, from what the prefix cache still has."""
        self._leave(seq)
        seq.phase = Phase.WAITING
        seq.num_preemptions += 1
        seq.events.append("preempted")
        self._queue.push(seq)

    def _admit(self, batch: Batch) -> None:
        """Start waiting sequences in order; the first that does not fit blocks those behind it."""
        while len(self._queue) and len(self._running) < self.limits.max_sequences:
            seq = self._queue.peek()
            if self._room(batch, seq) <= 0:
                return
            # The last known token is always computed, for its logits; so never a hit on all of the blocks.
            num_matchable = (len(seq.tokens) - 1) // self._pool.block_size
            seals = self._pool.match(seq.block_keys(num_matchable, self._pool.block_size))
            # Blocks of all known tokens at once: who is admitted can compute its prompt without a preemption.
            missing = self._pool.blocks_for(len(seq.tokens) + self._lookahead) - len(seals)
            if not self._pool.can_alloc(missing):
                self._pool.release(seal.block for seal in reversed(seals))
                return
            self._queue.pop()
            seq.seals = seals
            seq.table = [*(seal.block for seal in seals), *self._pool.alloc(missing)]
            self._start(seq)
            self._plan_chunk(batch, seq)

    def _start(self, seq: Sequence) -> None:
        seq.num_computed = len(seq.seals) * self._pool.block_size
        seq.phase = Phase.RUNNING
        if seq.num_cached is None:
            seq.num_cached = min(seq.num_computed, len(seq.request.prompt))
        seq.events.append("resumed" if seq.num_preemptions else "scheduled")
        position = next((i for i, other in enumerate(self._running) if other.rank > seq.rank), len(self._running))
        self._running.insert(position, seq)
        self._kv.on_allocated(seq)

    # Committing

    def _commit_row(self, seq: Sequence, row: RowPlan, result: RowResult | None) -> Delta:
        error = _error_of(row, result)
        if error is not None or result is None:
            self._end(seq, FinishReason.ERROR)
            return self._delta(seq, error=error)
        seq.is_told = True
        seq.num_told_blocks = row.first_block + len(row.new_blocks)
        num_prompt_tokens = len(row.tokens) if seq.num_pending > 1 else 0
        # Accepted drafts have KV; the last token of a result has none yet.
        num_accepted = max(0, len(result.tokens) - 1)
        had_output = seq.num_output > 0
        seq.num_computed += len(row.tokens)
        new, reason = self._append(seq, result.tokens)
        if new and reason is None:
            seq.num_computed += num_accepted
            forced, reason = self._append(seq, self._exit.forced(seq, result.signals))
            new = (*new, *forced)
        seq.draft = result.draft
        if new and not had_output:
            seq.events.append("first_token")
        self._seal(seq)
        if reason is not None:
            self._end(seq, reason)
        return self._delta(seq, tokens=new, num_prompt_tokens=num_prompt_tokens)

    def _append(self, seq: Sequence, tokens: tuple[Token, ...]) -> tuple[tuple[Token, ...], FinishReason | None]:
        """Add tokens up to the one that ends the sequence."""
        for index, token in enumerate(tokens):
            reason = seq.append(token, self.limits.max_sequence_tokens)
            if reason is not None:
                return tokens[: index + 1], reason
        return tokens, None

    def _seal(self, seq: Sequence) -> None:
        """Make blocks findable that are full of computed, committed tokens."""
        num_full = seq.num_computed // self._pool.block_size
        keys = seq.block_keys(num_full, self._pool.block_size)
        for index in range(len(seq.seals), num_full):
            seq.seals.append(self._pool.seal(seq.table[index], keys[index], seq.parent_seal()))

    # Leaving

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        was_running = seq.phase is Phase.RUNNING
        seq.finish = reason
        if was_running:
            held = self._kv.on_finished(seq)
            if held:
                self._held[seq.id], seq.table = seq.table, []
            self._leave(seq)
        else:
            self._queue.remove(seq)
        seq.phase = Phase.FINISHED
        del self._sequences[seq.id]

    def _leave(self, seq: Sequence) -> None:
        """From running to nothing: blocks back, tails first, so that beginnings stay cached longest."""
        self._running.remove(seq)
        self._pool.release(reversed(seq.table))
        seq.table, seq.seals, seq.num_computed, seq.draft = [], [], 0, NO_DRAFT
        seq.is_told, seq.num_told_blocks = False, 0
        self._gone.append(seq.id)

    def _delta(
        self, seq: Sequence, *, tokens: tuple[Token, ...] = (), error: str | None = None, num_prompt_tokens: int = 0
    ) -> Delta:
        events, seq.events = tuple(seq.events), []
        return Delta(
            id=seq.id,
            tokens=tokens,
            finish=seq.finish,
            error=error,
            num_cached=seq.num_cached or 0,
            num_preemptions=seq.num_preemptions,
            num_prompt_tokens=num_prompt_tokens,
            events=events,
        )


def _error_of(row: RowPlan, result: RowResult | None) -> str | None:
    if result is None:
        return "the executor gave no result for the row"
    if result.error is not None:
        return result.error
    if bool(row.wants) != bool(result.tokens):
        return f"the executor gave {len(result.tokens)} tokens for {len(row.wants)} wanted positions"
    return None
