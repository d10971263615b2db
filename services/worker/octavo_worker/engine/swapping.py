"""Which blocks of preempted sequences lie in which slots of host memory. Decides; moves nothing.

A stored unit (a sequence, or all beams of a search) keeps the blocks that others hold, too, and gives back its own.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.tables import Tables
from octavo_worker.engine.types import BlockId, HostSlot


class Swapper:
    """Slots of host memory, and the movements of the plan that is being made. With no slot nothing is ever stored."""

    def __init__(self, tables: Tables, *, num_slots: int = 0) -> None:
        self._tables = tables
        self._pool = tables.pool
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._stores: list[tuple[BlockId, HostSlot]] = []
        self._loads: list[tuple[HostSlot, BlockId]] = []
        # Sources of loads that have not been run yet: not free before that.
        self._loading: list[HostSlot] = []

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def store(self, unit: SequenceOf[Sequence]) -> bool:
        """Move the blocks that only the unit holds to host memory; False, and nothing changed, if that has no room."""
        held: dict[BlockId, int] = {}
        for seq in unit:
            for block in self._computed(seq):
                held[block] = held.get(block, 0) + 1
        moved = [block for block, num in held.items() if self._pool.num_refs(block) == num]
        if not moved or len(moved) > len(self._free):
            return False
        slots = {block: self._free.pop() for block in moved}
        self._stores.extend(slots.items())
        for seq in unit:
            computed = self._computed(seq)
            seq.parked = [~slots[block] if block in slots else block for block in computed]
            # What was allocated and not written yet, and what was moved; tails first, as ever.
            self._pool.release(reversed(seq.table[len(computed) :]))
            self._pool.release(block for block in reversed(computed) if block in slots)
            seq.table = []
        return True

    def load(self, unit: SequenceOf[Sequence]) -> bool:
        """Give a stored unit its blocks again; False, and nothing changed, if the pool has no room now.

        Blocks whose content is still cached where it was are not moved, as far as the beginning reaches.
        """
        found: list[list[BlockId]] = [self._beginning(seq) for seq in unit]
        slots: dict[HostSlot, int] = {}
        num_growth = 0
        for seq, begin in zip(unit, found, strict=True):
            for entry in seq.parked[len(begin) :]:
                if entry < 0:
                    slots[~entry] = slots.get(~entry, 0) + 1
            num_growth += self._pool.blocks_for(len(seq.tokens) + self._tables.lookahead) - len(seq.parked)
        if not self._pool.can_alloc(len(slots) + num_growth):
            for seq, begin in zip(unit, found, strict=True):
                pairs = zip(reversed(begin), reversed(seq.parked[: len(begin)]), strict=True)
                self._pool.release(block for block, entry in pairs if entry < 0)
            return False
        blocks = dict(zip(slots, self._pool.alloc(len(slots)), strict=True))
        stored = {~entry for seq in unit for entry in seq.parked if entry < 0}
        for slot, num_holders in slots.items():
            self._pool.fork([blocks[slot]] * (num_holders - 1))
        for seq, begin in zip(unit, found, strict=True):
            rest = seq.parked[len(begin) :]
            seq.table = [*begin, *(blocks[~entry] if entry < 0 else entry for entry in rest)]
            seq.parked, seq.seals = [], seq.seals[: len(begin)]
        self._loads.extend(blocks.items())
        self._loading.extend(slots)
        self._free.extend(sorted(stored - slots.keys(), reverse=True))
        return True

    def _computed(self, seq: Sequence) -> list[BlockId]:
        return seq.table[: self._pool.blocks_for(seq.num_computed)]

    def _beginning(self, seq: Sequence) -> list[BlockId]:
        """The table as far as its blocks are where they were: those it kept, and moved ones whose content is cached."""
        begin: list[BlockId] = []
        for index, entry in enumerate(seq.parked):
            if entry >= 0:
                begin.append(entry)
            elif index < len(seq.seals) and self._pool.retake(seq.seals[index]):
                begin.append(seq.seals[index].block)
            else:
                break
        return begin

    def dissolve(self, unit: SequenceOf[Sequence]) -> None:
        """Give up what a stored unit has in host memory and in the pool."""
        self._free.extend({~entry for seq in unit for entry in seq.parked if entry < 0})
        for seq in unit:
            self._pool.release(entry for entry in reversed(seq.parked) if entry >= 0)
            seq.parked = []
            self._tables.forget(seq)

    def take_ops(self) -> tuple[tuple[tuple[BlockId, HostSlot], ...], tuple[tuple[HostSlot, BlockId], ...]]:
        """Stores and loads of the plan that was made; each is handed out once."""
        stores, loads = tuple(self._stores), tuple(self._loads)
        self._stores, self._loads = [], []
        return stores, loads

    def on_loaded(self) -> None:
        """The loads that were handed out have been run."""
        self._free.extend(self._loading)
        self._loading = []

    def check_integrity(self, parked: SequenceOf[Sequence]) -> None:
        """Raise AssertionError unless every slot is free, loading or held by a parked sequence."""
        held = {~entry for seq in parked for entry in seq.parked if entry < 0}
        everywhere = [*self._free, *self._loading, *held]
        assert sorted(everywhere) == list(range(self.num_slots)), "slots of host memory are lost, or used twice"
