"""How the pool and its holders stand between two steps, for who looks. Copies only: the engine goes on at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.types import BlockId, SeqId


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One sequence, and the blocks that it holds."""

    id: SeqId
    # A phase, or ``swapped``: it waits, and lies in host memory.
    phase: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed: int
    # In the order of its tokens.
    blocks: tuple[BlockId, ...]
    # Of its blocks, those whose content lies in host memory.
    num_host_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole pool."""

    # The last step.
    step: int
    block_size: int
    # References of each block.
    refs: tuple[int, ...]
    # Blocks with content and without references.
    cached: tuple[BlockId, ...]
    holders: tuple[Holder, ...]
    num_host_slots: int
    num_free_host_slots: int


def take_snapshot(
    *, step: int, pool: BlockPool, sequences: Iterable[Sequence], num_host_slots: int, num_free_host_slots: int
) -> Snapshot:
    """Copy what is shown; as long as it takes to copy the tables."""
    refs, cached = pool.view()
    return Snapshot(
        step=step,
        block_size=pool.block_size,
        refs=refs,
        cached=cached,
        holders=tuple(_holder(seq) for seq in sequences),
        num_host_slots=num_host_slots,
        num_free_host_slots=num_free_host_slots,
    )


def _holder(seq: Sequence) -> Holder:
    # While it is swapped out it keeps the blocks that others hold, too.
    kept = [block for block in seq.parked if block >= 0]
    return Holder(
        id=seq.id,
        phase="swapped" if seq.parked else seq.phase.value,
        num_tokens=len(seq.tokens),
        num_prompt_tokens=len(seq.request.prompt),
        num_computed=seq.num_computed,
        blocks=(*seq.table, *kept),
        num_host_blocks=len(seq.parked) - len(kept),
    )
