"""Moves blocks within one pool, and between it and host memory. One block of all layers is one contiguous range."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from octavo_worker.engine.plan import NO_KV_OPS, KVOps

Copy = Callable[[Tensor, Sequence[tuple[int, int]]], None]
"""``copy(pool, pairs)``: block ``to`` becomes block ``from``, pair after pair, as if one after the other."""


def copy_in_order(pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """One after the other."""
    for source, target in pairs:
        pool[target].copy_(pool[source])


class LocalTransfer:
    """Copies, one after the other: what comes after `begin`, in the same thread, finds all of them done.

    On a GPU they are done in the order of its stream, like all that follows; nobody waits for them here. Host memory is
    read by such copies only.
    """

    def __init__(self, pool: Tensor, host: Tensor, copy: Copy = copy_in_order) -> None:
        """``pool``: ``[blocks, ...]``, ``host``: ``[slots, ...]``, with equal blocks."""
        assert pool.shape[1:] == host.shape[1:], "a slot holds a block"
        self._pool = pool
        self._host = host
        self._copy = copy
        self._step = 0

    def begin(self, step: int, ops: KVOps) -> None:
        """Run stores_out, copies and loads pair after pair, unless this step's have been run already."""
        if ops is NO_KV_OPS or step == self._step:
            return
        self._step = step
        pool, host = self._pool, self._host
        for block, slot in ops.stores_out:
            host[slot].copy_(pool[block], non_blocking=True)
        # In their order: a block that was copied from may have been given out and copied to after that.
        if ops.copies:
            self._copy(pool, ops.copies)
        for slot, block in ops.loads:
            pool[block].copy_(host[slot], non_blocking=True)
