"""Moves sequences forward by what the executor reports, lets choices and beams fork off, and ends what has ended.

A fork shares every block with its origin; the copy of the tail is planned when one of them is about to write into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.beams import Extension
from octavo_worker.engine.plan import BatchPlan, RowPlan, RowResult, StepResult
from octavo_worker.engine.planner import Planner
from octavo_worker.engine.ports import ExitPolicy, KVPlanner
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.sequence import BeamGroup, Phase, Sequence, Story, ended_by
from octavo_worker.engine.swapping import Swapper
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import BlockId, Delta, FinishReason, Limits, SeqId, Token


class Committer:
    """The second half of a step."""

    def __init__(
        self,
        *,
        limits: Limits,
        roster: Roster,
        tables: Tables,
        swapper: Swapper,
        planner: Planner,
        kv: KVPlanner,
        exit_policy: ExitPolicy,
    ) -> None:
        self._max_tokens = limits.max_sequence_tokens
        self._roster = roster
        self._tables = tables
        self._swapper = swapper
        self._planner = planner
        self._kv = kv
        self._exit = exit_policy
        # Blocks of ended sequences that the planner still needs.
        self.held: dict[SeqId, list[BlockId]] = {}

    def commit(self, plan: BatchPlan, result: StepResult) -> list[Delta]:
        """What the step brought for each planned sequence that is still here."""
        deltas: list[Delta] = []
        known, groups = self._roster.known, set[BeamGroup]()
        for row in plan.rows:
            seq = known.get(row.id)
            # It may have been aborted since it was planned.
            if seq is None or seq.phase is not Phase.RUNNING:
                continue
            if seq.group is None:
                deltas.extend(self._commit_row(seq, row, result.rows.get(row.id)))
            elif seq.group not in groups:
                groups.add(seq.group)
                deltas.extend(self._commit_beams(seq.group, seq.unit, plan, result.rows))
        return deltas

    # One choice

    def _commit_row(self, seq: Sequence, row: RowPlan, result: RowResult | None) -> list[Delta]:
        error = _error_of(row, result)
        if error is not None or result is None:
            return self.end_choice(seq, FinishReason.ERROR, error=error)
        num_prompt_tokens = len(row.tokens) if seq.num_pending > 1 else 0
        had_output = seq.num_output > 0
        _advance(seq, row)
        siblings: list[Delta] = []
        if len(row.draws) > 1:
            self._tables.seal(seq)
            siblings = self._fork_choices(seq, result)
        new, reason = self._append(seq, result.tokens)
        if new:
            self._roster.queue.served(seq.request, len(new))
            if reason is None:
                # Accepted drafts have KV; the last token of a result has none yet.
                seq.num_computed += len(new) - 1
                forced, reason = self._append(seq, self._exit.forced(seq, result.signals))
                new = (*new, *forced)
            if not had_output:
                seq.story.events.append("first_token")
        seq.draft = result.draft
        self._tables.seal(seq)
        if reason is not None:
            self._end((seq,), reason)
        delta = Delta(
            id=seq.id,
            tokens=new,
            logprobs=result.logprobs[: len(new)],
            prompt_logprobs=result.prompt_logprobs,
            finish=reason,
            num_cached=seq.story.num_cached or 0,
            num_preemptions=seq.story.num_preemptions,
            num_prompt_tokens=num_prompt_tokens,
            events=_take_events(seq.story),
        )
        return [delta, *siblings] if siblings else [delta]

    def _append(self, seq: Sequence, tokens: tuple[Token, ...]) -> tuple[tuple[Token, ...], FinishReason | None]:
        """Add tokens up to the one that ends the sequence."""
        for index, token in enumerate(tokens):
            reason = seq.append(token, self._max_tokens)
            if reason is not None:
                return tokens[: index + 1], reason
        return tokens, None

    def _fork_choices(self, seq: Sequence, result: RowResult) -> list[Delta]:
        """The other choices, each with its first token; the prompt's KV is there, no token is appended yet."""
        request, choices = seq.request, seq.draws[1:]
        seq.draws = seq.draws[:1]
        deltas: list[Delta] = []
        for index, (choice, token) in enumerate(zip(choices, result.siblings, strict=True)):
            story = Story(num_cached=seq.story.num_cached)
            reason = ended_by(request, 1, token, self._max_tokens)
            if reason is None:
                twin = _twin(seq, choice, story)
                twin.tokens.append(token)
                self._tables.fork(seq, twin)
                self._roster.know(twin)
                self._roster.run(twin)
            else:
                self._roster.num_rows -= 1
            self._roster.queue.served(request, 1)
            deltas.append(
                Delta(
                    id=SeqId(request.id, choice),
                    tokens=(token,),
                    logprobs=result.sibling_logprobs[index : index + 1],
                    finish=reason,
                    num_cached=story.num_cached or 0,
                    events=("scheduled", "first_token"),
                )
            )
        return deltas

    # Beams

    def _commit_beams(
        self, group: BeamGroup, unit: SequenceOf[Sequence], plan: BatchPlan, results: Mapping[SeqId, RowResult]
    ) -> list[Delta]:
        """The rows of one search: a chunk of known tokens, or the next step of the search."""
        ids = {seq.id for seq in unit}
        rows = {row.id: row for row in plan.rows if row.id in ids}
        for row in rows.values():
            error = _error_of(row, results.get(row.id))
            if error is not None:
                return self.end_group(group, FinishReason.ERROR, error=error)
        first, story = unit[0], unit[0].story
        first_result = results[first.id]
        num_prompt_tokens = sum(len(row.tokens) for row in rows.values()) if first.num_pending > 1 else 0
        for seq in unit:
            _advance(seq, rows[seq.id])
            self._tables.seal(seq)
        if first.goal == first.num_computed:
            self._planner.fork_beams(first)
        elif rows[first.id].num_candidates:
            if not first.num_output:
                story.events.append("first_token")
            self._roster.queue.served(first.request, len(unit))
            extensions = group.search.advance([results[seq.id].candidates for seq in unit])
            if group.search.is_done:
                return self._finish_search(group, first_result, num_prompt_tokens)
            self._extend(group, extensions)
        return [self._group_delta(group, first_result, num_prompt_tokens)]

    def _extend(self, group: BeamGroup, extensions: list[Extension]) -> None:
        """Beams that go on: the first child of each goes on in its place, the others fork off it, the rest end."""
        before, group.members = group.members, []
        going_on = {extension.parent for extension in extensions}
        free = iter(sorted(set(range(group.width)) - {before[parent].id.choice for parent in going_on}))
        placed: set[int] = set()
        twins: list[Sequence] = []
        for parent, _token in extensions:
            seq = before[parent]
            if parent in placed:
                origin, seq = seq, _twin(seq, next(free), seq.story)
                self._tables.fork(origin, seq)
                twins.append(seq)
            placed.add(parent)
            group.members.append(seq)
        # Their ids are given out again above.
        for parent, seq in enumerate(before):
            if parent not in placed:
                self._leave(seq)
        for twin in twins:
            self._roster.know(twin)
            self._roster.run(twin)
        for seq, extension in zip(group.members, extensions, strict=True):
            seq.tokens.append(extension.token)

    def _finish_search(self, group: BeamGroup, result: RowResult, num_prompt_tokens: int) -> list[Delta]:
        request, story = group.leader.request, group.leader.story
        wants_logprobs = request.params.num_logprobs is not None
        self._end(group.members, FinishReason.STOP)
        return [
            Delta(
                id=SeqId(request.id, place),
                tokens=found.tokens,
                logprobs=found.logprobs if wants_logprobs else (),
                prompt_logprobs=() if place else result.prompt_logprobs,
                score=found.score,
                finish=found.finish,
                num_cached=story.num_cached or 0,
                num_preemptions=story.num_preemptions,
                num_prompt_tokens=0 if place else num_prompt_tokens,
                events=_take_events(story),
            )
            for place, found in enumerate(group.search.hypotheses)
        ]

    @staticmethod
    def _group_delta(group: BeamGroup, result: RowResult, num_prompt_tokens: int) -> Delta:
        request, story = group.leader.request, group.leader.story
        return Delta(
            id=SeqId(request.id, 0),
            prompt_logprobs=result.prompt_logprobs,
            num_cached=story.num_cached or 0,
            num_preemptions=story.num_preemptions,
            num_prompt_tokens=num_prompt_tokens,
            events=_take_events(story),
        )

    # Ends

    def end_choice(self, seq: Sequence, reason: FinishReason, *, error: str | None = None) -> list[Delta]:
        """End a sequence at any stage, and with it the choices that would have forked off it."""
        self._end((seq,), reason)
        return [told(SeqId(seq.id.request, choice), seq.story, finish=reason, error=error) for choice in seq.draws]

    def end_group(self, group: BeamGroup, reason: FinishReason, *, error: str | None = None) -> list[Delta]:
        """End a beam search without a result."""
        leader = group.leader
        self._end(group.members, reason)
        return [told(SeqId(leader.id.request, 0), leader.story, finish=reason, error=error)]

    def _end(self, seqs: SequenceOf[Sequence], reason: FinishReason) -> None:
        first = seqs[0]
        if first.phase is Phase.WAITING:
            self._roster.leave_line(first)
            self._swapper.dissolve(seqs)
        else:
            self._roster.num_rows -= first.num_rows
        for seq in seqs:
            seq.finish = reason
            if seq.phase is not Phase.WAITING and self._kv.on_finished(seq):
                self.held[seq.id], seq.table = seq.table, []
            self._leave(seq)

    def _leave(self, seq: Sequence) -> None:
        """From anywhere to nothing, blocks given back."""
        if seq.phase is not Phase.WAITING:
            self._roster.rest(seq)
            self._tables.release(seq)
        seq.phase = Phase.FINISHED
        self._roster.forget(seq)


def told(seq_id: SeqId, story: Story, *, finish: FinishReason | None = None, error: str | None = None) -> Delta:
    """What there is to tell of a sequence that computed nothing."""
    return Delta(
        id=seq_id,
        finish=finish,
        error=error,
        num_cached=story.num_cached or 0,
        num_preemptions=story.num_preemptions,
        events=_take_events(story),
    )


def _advance(seq: Sequence, row: RowPlan) -> None:
    """The row's tokens have KV now, and the executor knows the row."""
    seq.is_told = True
    seq.num_told_blocks = row.first_block + len(row.new_blocks)
    seq.num_computed += len(row.tokens)
    seq.num_scored += len(row.scored)


def _twin(seq: Sequence, choice: int, story: Story) -> Sequence:
    """Another choice with the same tokens, without blocks."""
    return Sequence(
        request=seq.request,
        id=SeqId(seq.id.request, choice),
        rank=(*seq.rank[:2], choice),
        root=seq.root,
        tokens=list(seq.tokens),
        story=story,
        draws=(choice,),
        phase=Phase.RUNNING,
        num_scored=seq.num_scored,
        group=seq.group,
    )


def _take_events(story: Story) -> tuple[str, ...]:
    if not story.events:
        return ()
    events, story.events = tuple(story.events), []
    return events


def _error_of(row: RowPlan, result: RowResult | None) -> str | None:
    if result is None:
        return "the executor gave no result for the row"
    if result.error is not None:
        return result.error
    if bool(row.draws) != bool(result.tokens):
        return f"the executor gave {len(result.tokens)} tokens for {len(row.draws)} wanted"
    if row.draws and len(result.siblings) != len(row.draws) - 1:
        return f"the executor gave {len(result.siblings)} tokens of other choices for {len(row.draws) - 1} wanted"
    if bool(row.num_candidates) != bool(result.candidates):
        return f"the executor gave {len(result.candidates)} candidates for {row.num_candidates} wanted"
    if len(result.prompt_logprobs) != len(row.scored):
        return f"the executor gave {len(result.prompt_logprobs)} log-probabilities for {len(row.scored)} known tokens"
    return None
