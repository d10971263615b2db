"""What must hold between any two calls of a scheduler. Reads everything, changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.sequence import Phase, Sequence
from octavo_worker.engine.types import BlockId, Limits, SeqId


def check_integrity(
    *,
    pool: BlockPool,
    limits: Limits,
    waiting: SequenceOf[Sequence],
    running: SequenceOf[Sequence],
    known: Mapping[SeqId, Sequence],
    held: Iterable[Collection[BlockId]],
) -> None:
    """Raise AssertionError when the books do not balance."""
    pool.check_integrity([*(seq.table for seq in known.values()), *held])
    for name, line in (("waiting", waiting), ("running", running)):
        assert list(line) == sorted(line, key=lambda seq: seq.rank), f"the {name} are out of order"
    assert len(running) <= limits.max_sequences, "too many are running"
    assert {seq.id for seq in (*waiting, *running)} == known.keys(), "a sequence is nowhere"
    assert len(waiting) + len(running) == len(known), "a sequence is in two places"
    for seq in waiting:
        assert seq.phase is Phase.WAITING, f"{seq.id} waits in phase {seq.phase}"
        assert not seq.table and not seq.num_computed, f"{seq.id} waits and holds blocks"
    for seq in running:
        assert seq.phase is Phase.RUNNING, f"{seq.id} runs in phase {seq.phase}"
        assert 0 <= seq.num_computed < len(seq.tokens) <= limits.max_sequence_tokens, f"{seq.id}: its tokens"
        assert len(seq.table) >= pool.blocks_for(seq.num_computed), f"{seq.id} computed beyond its blocks"
        assert len(seq.seals) == seq.num_computed // pool.block_size, f"{seq.id}: its full blocks are sealed"
