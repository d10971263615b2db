"""Moves sequences forward by what the executor reports, and lets other choices fork off where a prompt ends.

A fork shares every block with its origin; the copy of the tail is planned when one of them is about to write into it.
"""

from __future__ import annotations

from octavo_worker.engine.endings import Endings
from octavo_worker.engine.plan import BatchPlan, RowPlan, RowResult, StepResult
from octavo_worker.engine.ports import ExitPolicy
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.rows import error_of
from octavo_worker.engine.searches import Searches
from octavo_worker.engine.sequence import BeamGroup, Phase, Sequence, Story, ended_by
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import Delta, FinishReason, Limits, SeqId, Token


class Committer:
    """The second half of a step."""

    def __init__(
        self,
        *,
        limits: Limits,
        roster: Roster,
        tables: Tables,
        searches: Searches,
        endings: Endings,
        exit_policy: ExitPolicy,
    ) -> None:
        self._max_tokens = limits.max_sequence_tokens
        self._roster = roster
        self._tables = tables
        self._searches = searches
        self._endings = endings
        self._exit = exit_policy

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
                deltas.extend(self._searches.commit(seq.group, seq.unit, plan, result.rows))
        return deltas

    def _commit_row(self, seq: Sequence, row: RowPlan, result: RowResult | None) -> list[Delta]:
        error = error_of(row, result)
        if error is not None or result is None:
            return self._endings.end_choice(seq, FinishReason.ERROR, error=error)
        num_prompt_tokens = len(row.tokens) if seq.num_pending > 1 else 0
        had_output = seq.num_output > 0
        seq.advance(row)
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
            self._endings.end((seq,), reason)
        delta = Delta(
            id=seq.id,
            tokens=new,
            logprobs=result.logprobs[: len(new)],
            prompt_logprobs=result.prompt_logprobs,
            finish=reason,
            num_cached=seq.story.num_cached or 0,
            num_preemptions=seq.story.num_preemptions,
            num_prompt_tokens=num_prompt_tokens,
            events=seq.story.take_events(),
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
                twin = seq.twin(choice, story)
                twin.tokens.append(token)
                self._tables.fork(seq, twin)
                self._roster.know(twin)
                self._roster.branch(seq, twin)
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
