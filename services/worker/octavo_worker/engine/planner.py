"""Gives sequences their share of a step: blocks, rows, admission, and who makes room. Same state in, same plan out.

Which sequences are asked, and in which order, is the business of a style (`styles.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.batch import Batch
from octavo_worker.engine.plan import NO_DRAFT, Draft
from octavo_worker.engine.ports import KVPlanner
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.rows import make_row
from octavo_worker.engine.sequence import Phase, Sequence
from octavo_worker.engine.swapping import Swapper
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import Limits


class Planner:
    """What all styles share. Preempts and takes blocks; moves no sequence forward."""

    def __init__(self, *, limits: Limits, roster: Roster, tables: Tables, swapper: Swapper, kv: KVPlanner) -> None:
        self.limits = limits
        self.roster = roster
        self._tables = tables
        self._swapper = swapper
        self._kv = kv
        # Units whose content is being loaded.
        self.arriving: list[Sequence] = []
        # Preempted by the plan, to be told at its commit.
        self.displaced: list[Sequence] = []

    # Rows

    def plan_row(self, batch: Batch, seq: Sequence, num_tokens: int, draft: Draft = NO_DRAFT) -> bool:
        """A row of so many tokens for the sequence, and for all beams of its search or for none."""
        if seq.phase is not Phase.RUNNING:
            # Preempted by an earlier row of this step.
            return False
        if seq.group is None and self._tables.has_all(seq, num_tokens, len(draft)):
            batch.take(make_row(seq, num_tokens, draft), decodes=seq.num_pending == 1)
            return True
        unit = seq.unit
        if not self._make_room(batch, unit, num_tokens, len(draft)):
            return False
        decodes = seq.num_pending == 1
        for member in unit:
            copy = self._tables.grow(member, num_tokens, len(draft))
            if copy is not None:
                batch.copies[member.id] = copy
            batch.take(make_row(member, num_tokens, draft), decodes=decodes)
        return True

    def plan_chunk(self, batch: Batch, seq: Sequence) -> None:
        """As many of a sequence's pending tokens as the step has room for; equally many for each beam of a search."""
        num_rows = len(seq.unit)
        num_tokens = self.room(batch, seq) // num_rows
        if num_rows > 1:
            # Beams take up again what they had: they may not starve because all of them do not fit beside the others.
            num_tokens = min(max(1, num_tokens), batch.budget // num_rows)
        num_tokens = min(seq.num_pending, num_tokens)
        if self.limits.max_chunk_tokens is not None:
            num_tokens = min(num_tokens, self.limits.max_chunk_tokens)
        if num_tokens > 0:
            self.plan_row(batch, seq, num_tokens)

    @staticmethod
    def room(batch: Batch, seq: Sequence) -> int:
        """Tokens that the step still has for a sequence with more than one pending.

        A resumed one may take all: its stream stands still, and those that decode beside it pause for less than that.
        """
        return batch.budget if seq.is_behind else min(batch.budget, batch.prompt_budget)

    # Making room

    def _make_room(self, batch: Batch, unit: SequenceOf[Sequence], num_tokens: int, num_drafts: int) -> bool:
        """See to it that there are blocks for the unit's rows, at the cost of younger ones; False if of the unit."""
        tables, running = self._tables, self.roster.running
        # Asked again each time: who leaves may have been the one that a tail was shared with.
        while (missing := tables.missing(unit, num_tokens, num_drafts)) and not tables.pool.can_alloc(missing):
            victim = running[-1].unit
            if victim[0] is unit[0] and self._dissolve_younger(unit[0]):
                continue
            self._preempt(batch, victim)
            if victim[0] is unit[0]:
                return False
        return True

    def _dissolve_younger(self, seq: Sequence) -> bool:
        """Make the youngest unit that waits with blocks in the pool give them up, if it is younger."""
        youngest = self.roster.keeping()
        if youngest is None or youngest.rank < seq.rank:
            return False
        self._dissolve(youngest)
        return True

    def _dissolve(self, seq: Sequence) -> None:
        unit = seq.unit
        self._swapper.dissolve(unit)
        self._start_over(unit)

    def _preempt(self, batch: Batch, unit: SequenceOf[Sequence]) -> None:
        """Take a unit's blocks: to host memory if that has room, else they are computed again later."""
        first, decodes = unit[0], unit[0].num_pending == 1
        # What a copy of this step would fill has no content yet.
        is_whole = not any(seq.id in batch.copies for seq in unit)
        for seq in unit:
            planned = batch.rows.get(seq.id)
            if planned is not None:
                batch.refund(planned, decodes=decodes)
            self.roster.rest(seq)
            seq.phase = Phase.WAITING
        batch.num_preempted += 1
        self.roster.num_rows -= first.num_rows
        first.story.num_preemptions += 1
        first.story.events.append("preempted")
        self.displaced.append(first)
        if is_whole and self._swapper.store(unit):
            batch.num_swapped += 1
            for seq in unit:
                # The executor forgets the row; what is computed stays so.
                seq.is_told, seq.num_told_blocks, seq.draft = False, 0, NO_DRAFT
        else:
            for seq in unit:
                self._tables.release(seq)
            self._start_over(unit)
        self.roster.come_back(first)

    def _start_over(self, unit: SequenceOf[Sequence]) -> None:
        """Without blocks: the first beam computes what all have in common, then the others fork off again."""
        if len(unit) > 1:
            size = self._tables.pool.block_size
            unit[0].goal = _num_common(unit) // size * size

    # Admission

    def admit(self, batch: Batch, *, whole_prompts: bool = False) -> None:
        """Start waiting units in order; the first that does not fit blocks those behind it."""
        # Who was preempted is the first to come back; not in the step that took its blocks.
        while not batch.num_preempted and (seq := self.roster.next()) is not None:
            if self.roster.num_rows + seq.num_rows > self.limits.max_sequences:
                return
            if seq.parked:
                if not self._load(seq):
                    return
                continue
            num_tokens = seq.num_pending if whole_prompts else 1
            if self.room(batch, seq) < num_tokens or not self._begin(batch, seq):
                return

    def admit_stored(self) -> None:
        """Bring back what lies in host memory, up to the first that does not fit or has to be computed again."""
        for seq in list(self.roster.returning):
            has_room = self.roster.num_rows + seq.num_rows <= self.limits.max_sequences
            if not seq.parked or not has_room or not self._load(seq):
                return

    def _begin(self, batch: Batch, seq: Sequence) -> bool:
        while not self._tables.begin(seq, num_spare=self._num_spare(seq) if self.roster.running else 0):
            if self.roster.running or not self._dissolve_younger(seq):
                return False
        self.roster.take(seq)
        batch.num_asked_tokens += self._tables.num_matchable(seq) * self._tables.pool.block_size
        batch.num_found_tokens += seq.num_computed
        story = seq.story
        if story.num_cached is None:
            story.num_cached = min(seq.num_computed, len(seq.request.prompt))
        self._start((seq,))
        if seq.goal is not None and seq.num_computed == seq.goal:
            self.fork_beams(seq)
        self.plan_chunk(batch, seq)
        return True

    def _num_spare(self, seq: Sequence) -> int:
        """Blocks that should be left for the rows that fork off it: their tails."""
        if seq.group is None or seq.goal is None:
            return seq.num_rows - 1
        pool, num_slots = self._tables.pool, len(seq.tokens) + self._tables.lookahead
        return len(seq.group.members) * (pool.blocks_for(num_slots) - pool.blocks_for(seq.goal))

    def _load(self, seq: Sequence) -> bool:
        unit = seq.unit
        while not self._swapper.load(unit):
            keeping = self.roster.keeping()
            if self.roster.running or keeping is None:
                return False
            # Nobody runs, so only those in host memory can hold what is missing, itself last.
            self._dissolve(keeping)
            if not seq.parked:
                # Begun anew, in its turn.
                return True
        self.roster.take(seq)
        self._start(unit)
        for member in unit:
            member.phase = Phase.AWAITING_KV
        self.arriving.extend(unit)
        return True

    def _start(self, unit: SequenceOf[Sequence]) -> None:
        story = unit[0].story
        story.events.append("resumed" if story.num_preemptions else "scheduled")
        self.roster.num_rows += unit[0].num_rows
        for seq in unit:
            seq.phase = Phase.RUNNING
            self.roster.run(seq)
            self._kv.on_allocated(seq)

    def fork_beams(self, leader: Sequence) -> None:
        """The first beam has computed what all have in common: from here on each has a row."""
        assert leader.group is not None
        leader.goal = None
        for seq in leader.group.members[1:]:
            self._tables.fork(leader, seq)
            seq.phase = Phase.RUNNING
            self.roster.branch(leader, seq)


def _num_common(unit: SequenceOf[Sequence]) -> int:
    """Length of the longest beginning that all have, short of the last token: that is where each goes on by itself."""
    first, last = min(seq.tokens for seq in unit), max(seq.tokens for seq in unit)
    num_common = 0
    while num_common < len(first) - 1 and first[num_common] == last[num_common]:
        num_common += 1
    return num_common
