"""How a worker's pool of blocks stands: plain frozen values. Knows no protobuf."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSequence:
    """One sequence of a worker's engine, and the blocks that it holds."""

    job_id: str
    choice: int
    # ``running``, ``awaiting_kv``, ``swapped`` or ``waiting``.
    phase: str
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_blocks: int
    # Held by others too.
    num_shared_blocks: int
    # In the order of its tokens; empty where cells stand for several blocks.
    blocks: tuple[int, ...]
    # In host memory.
    num_host_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The pool between two steps. Cell i stands for the blocks ``[i * blocks_per_cell, (i + 1) * blocks_per_cell)``."""

    step: int
    num_blocks: int
    # Tokens in a block.
    block_size: int
    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    # Used more than once.
    num_shared_blocks: int
    # Slots of used blocks that hold no token yet.
    num_unused_slots: int
    blocks_per_cell: int
    cell_used: tuple[int, ...]
    cell_cached: tuple[int, ...]
    cell_shared: tuple[int, ...]
    # Index of the sequence that holds most of the cell's blocks; -1 where nobody does.
    cell_owner: tuple[int, ...]
    sequences: tuple[PoolSequence, ...]
    num_sequences_left_out: int
    # Room of host memory for blocks of preempted sequences, and what of it is free.
    num_host_blocks: int = 0
    num_free_host_blocks: int = 0
