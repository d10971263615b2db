"""Sums a snapshot of the pool up for a reader: a cell a block, or a cell for several in a large pool. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from octavo_worker.engine.snapshot import Holder, Snapshot

MAX_CELLS = 4096
MAX_SEQUENCES = 256
# Entries of all tables together: shared blocks are in several.
MAX_LISTED = 1 << 16
_FIRST = ("running", "awaiting_kv", "swapped", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Some blocks that lie side by side. What is neither used nor cached is free."""

    num_used: int
    num_cached: int
    # Used more than once.
    num_shared: int
    # Index of the sequence that holds most of them; -1 for nobody.
    owner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """One sequence of a view."""

    holder: Holder
    num_shared_blocks: int
    # Empty where a cell stands for several, and where the tables together would be too long.
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """What is told of a pool."""

    snapshot: Snapshot
    num_used: int
    num_cached: int
    num_shared: int
    # Slots of used blocks without a token.
    num_unused_slots: int
    blocks_per_cell: int
    cells: tuple[Cell, ...]
    sequences: tuple[SequenceView, ...]
    num_sequences_left_out: int


def view(snapshot: Snapshot, *, max_cells: int = MAX_CELLS, max_sequences: int = MAX_SEQUENCES) -> PoolView:
    """Sum up; bounded in size whatever the pool's."""
    refs, size = snapshot.refs, snapshot.block_size
    each = max(1, -(-len(refs) // max_cells))
    holders = sorted(snapshot.holders, key=lambda holder: (_FIRST.index(holder.phase), holder.id))
    shown = holders[:max_sequences]
    cached = Counter(block // each for block in snapshot.cached)
    is_listed = each == 1 and sum(len(holder.blocks) for holder in shown) <= MAX_LISTED
    return PoolView(
        snapshot=snapshot,
        num_used=sum(count > 0 for count in refs),
        num_cached=len(snapshot.cached),
        num_shared=sum(count > 1 for count in refs),
        num_unused_slots=_unused_slots(holders, size),
        blocks_per_cell=each,
        cells=tuple(_cells(refs, each, cached, shown)),
        sequences=tuple(
            SequenceView(
                holder=holder,
                num_shared_blocks=sum(refs[block] > 1 for block in holder.blocks),
                blocks=holder.blocks if is_listed else (),
            )
            for holder in shown
        ),
        num_sequences_left_out=len(holders) - len(shown),
    )


def _cells(refs: tuple[int, ...], each: int, cached: Counter[int], shown: list[Holder]) -> list[Cell]:
    owners: list[Counter[int]] = [Counter() for _ in range(-(-len(refs) // each))]
    for index, holder in enumerate(shown):
        for block in holder.blocks:
            owners[block // each][index] += 1
    cells: list[Cell] = []
    for number, owned in enumerate(owners):
        part = refs[number * each : (number + 1) * each]
        cells.append(
            Cell(
                num_used=sum(count > 0 for count in part),
                num_cached=cached[number],
                num_shared=sum(count > 1 for count in part),
                owner=owned.most_common(1)[0][0] if owned else -1,
            )
        )
    return cells


def _unused_slots(holders: list[Holder], size: int) -> int:
    """Slots that no holder of their block has a known token for. A shared block is as full as its fullest holder's."""
    filled: dict[int, int] = {}
    for holder in holders:
        for index, block in enumerate(holder.blocks):
            filled[block] = max(filled.get(block, 0), min(size, max(0, holder.num_tokens - index * size)))
    return sum(size - count for count in filled.values())
