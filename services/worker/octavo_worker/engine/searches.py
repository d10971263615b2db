"""Moves beam searches forward: beams fork and end with their blocks, and a search that is done tells what it found.

Which beams go on is the business of `beams.py`. A fork shares every block with its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.beams import Extension
from octavo_worker.engine.endings import Endings
from octavo_worker.engine.plan import BatchPlan, RowResult
from octavo_worker.engine.planner import Planner
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.rows import error_of
from octavo_worker.engine.sequence import BeamGroup, Sequence
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import Delta, FinishReason, SeqId


class Searches:
    """The second half of a step, for beams."""

    def __init__(self, *, roster: Roster, tables: Tables, planner: Planner, endings: Endings) -> None:
        self._roster = roster
        self._tables = tables
        self._planner = planner
        self._endings = endings

    def commit(
        self, group: BeamGroup, unit: SequenceOf[Sequence], plan: BatchPlan, results: Mapping[SeqId, RowResult]
    ) -> list[Delta]:
        """The rows of one search: a chunk of known tokens, or the next step of the search."""
        ids = {seq.id for seq in unit}
        rows = {row.id: row for row in plan.rows if row.id in ids}
        for row in rows.values():
            error = error_of(row, results.get(row.id))
            if error is not None:
                return self._endings.end_group(group, FinishReason.ERROR, error=error)
        first, story = unit[0], unit[0].story
        first_result = results[first.id]
        num_prompt_tokens = sum(len(row.tokens) for row in rows.values()) if first.num_pending > 1 else 0
        for seq in unit:
            seq.advance(rows[seq.id])
            self._tables.seal(seq)
        if first.goal == first.num_computed:
            self._planner.fork_beams(first)
        elif rows[first.id].num_candidates:
            if not first.num_output:
                story.events.append("first_token")
            self._roster.queue.served(first.request, len(unit))
            extensions = group.search.advance([results[seq.id].candidates or () for seq in unit])
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
        twins: list[tuple[Sequence, Sequence]] = []
        for parent, _token in extensions:
            seq = before[parent]
            if parent in placed:
                origin, seq = seq, seq.twin(next(free), seq.story)
                self._tables.fork(origin, seq)
                twins.append((origin, seq))
            placed.add(parent)
            group.members.append(seq)
        # Their ids are given out again above.
        for parent, seq in enumerate(before):
            if parent not in placed:
                self._endings.leave(seq)
        for origin, twin in twins:
            self._roster.know(twin)
            self._roster.branch(origin, twin)
        for seq, extension in zip(group.members, extensions, strict=True):
            seq.tokens.append(extension.token)

    def _finish_search(self, group: BeamGroup, result: RowResult, num_prompt_tokens: int) -> list[Delta]:
        request, story = group.leader.request, group.leader.story
        wants_logprobs = request.params.num_logprobs is not None
        self._endings.end(group.members, FinishReason.STOP)
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
                events=story.take_events(),
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
            events=story.take_events(),
        )
