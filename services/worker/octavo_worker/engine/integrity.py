"""What must hold between any two calls of a scheduler. Reads everything, changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.roster import Roster
from octavo_worker.engine.sequence import Phase, Sequence
from octavo_worker.engine.swapping import Swapper
from octavo_worker.engine.types import BlockId, Limits


def check_integrity(
    *,
    pool: BlockPool,
    limits: Limits,
    roster: Roster,
    swapper: Swapper,
    held: Iterable[Collection[BlockId]],
) -> None:
    """Raise AssertionError when the books do not balance."""
    known = roster.known.values()
    kept = ([block for block in seq.parked if block >= 0] for seq in known)
    pool.check_integrity([*(seq.table for seq in known), *kept, *held])
    swapper.check_integrity(list(known))
    waiting = [*roster.queue, *roster.returning]
    for name, line in (("running", roster.running), ("returning", roster.returning)):
        assert list(line) == sorted(line, key=lambda seq: seq.rank), f"the {name} are out of order"
    _check_places(roster, waiting)
    assert roster.num_rows <= limits.max_sequences, "too many are running, or will be"
    assert roster.num_rows >= len(roster.running), "rows run that were not counted"
    for seq in waiting:
        assert seq.phase is Phase.WAITING, f"{seq.id} waits in phase {seq.phase}"
        assert not seq.table, f"{seq.id} waits and holds blocks"
        assert not seq.num_computed or seq.parked, f"{seq.id} waits, and what it computed is nowhere"
    for seq in roster.running:
        assert seq.phase in (Phase.RUNNING, Phase.AWAITING_KV), f"{seq.id} runs in phase {seq.phase}"
        assert 0 <= seq.num_computed < len(seq.tokens) <= limits.max_sequence_tokens, f"{seq.id}: its tokens"
        assert len(seq.table) >= pool.blocks_for(seq.num_computed), f"{seq.id} computed beyond its blocks"
        if seq.phase is Phase.RUNNING:
            assert len(seq.seals) == seq.num_computed // pool.block_size, f"{seq.id}: its full blocks are sealed"
    for seq in known:
        for index, key in enumerate(seq.keys):
            tokens = seq.tokens[index * pool.block_size : (index + 1) * pool.block_size]
            assert key.tokens == tuple(tokens), f"{seq.id} names block {index} by tokens of another sequence"
    _check_writers(pool, roster.running)


def _check_places(roster: Roster, waiting: SequenceOf[Sequence]) -> None:
    """Every sequence is in one place: a line, a row, or behind the first beam of its search."""
    places = [seq.id for seq in roster.running]
    for seq in waiting:
        places.extend(member.id for member in (seq.group.members if seq.group is not None else [seq]))
    for seq in roster.running:
        if seq.goal is not None and seq.group is not None:
            places.extend(member.id for member in seq.group.members[1:])
    assert len(places) == len(set(places)), "a sequence is in two places"
    assert set(places) == roster.known.keys(), "a sequence is nowhere"
    assert {seq.id for seqs in roster.requests.values() for seq in seqs} == roster.known.keys(), "requests differ"


def _check_writers(pool: BlockPool, running: SequenceOf[Sequence]) -> None:
    """Beams of one search have equally many tokens, and only full blocks or one partial tail are shared."""
    for seq in running:
        if seq.group is not None and seq.goal is None:
            assert {len(member.tokens) for member in seq.group.members} == {len(seq.tokens)}, "beams differ in length"
        beyond = seq.table[pool.blocks_for(seq.num_computed) :]
        assert all(pool.num_refs(block) == 1 for block in beyond), f"{seq.id} shares a block that has no content"
