"""Ends sequences at any stage: out of their line or row, blocks and slots given back. Knows no results."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.ports import KVPlanner
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.sequence import BeamGroup, Phase, Sequence, Story
from octavo_worker.engine.swapping import Swapper
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import BlockId, Delta, FinishReason, RuleFault, SeqId


class Endings:
    """The last thing that happens to a sequence."""

    def __init__(self, *, roster: Roster, tables: Tables, swapper: Swapper, kv: KVPlanner) -> None:
        self._roster = roster
        self._tables = tables
        self._swapper = swapper
        self._kv = kv
        # Blocks of ended sequences that the planner still needs.
        self.held: dict[SeqId, list[BlockId]] = {}

    def end_choice(self, seq: Sequence, reason: FinishReason, *, error: str | None = None) -> list[Delta]:
        """End a sequence at any stage, and with it the choices that would have forked off it."""
        self.end((seq,), reason)
        return [told(SeqId(seq.id.request, choice), seq.story, finish=reason, error=error) for choice in seq.draws]

    def end_group(self, group: BeamGroup, reason: FinishReason, *, error: str | None = None) -> list[Delta]:
        """End a beam search without a result."""
        leader = group.leader
        self.end(group.members, reason)
        return [told(SeqId(leader.id.request, 0), leader.story, finish=reason, error=error)]

    def end(self, seqs: SequenceOf[Sequence], reason: FinishReason) -> None:
        """End a sequence, or all beams of a search."""
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
            self.leave(seq)

    def leave(self, seq: Sequence) -> None:
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
        refusal=error.code if isinstance(error, RuleFault) else "",
        num_cached=story.num_cached or 0,
        num_preemptions=story.num_preemptions,
        events=story.take_events(),
    )
