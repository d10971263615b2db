"""Moves blocks within one pool, and between it and host memory. One block of all layers is one contiguous range."""

from __future__ import annotations

from torch import Tensor

from octavo_worker.engine.plan import NO_KV_OPS, KVOps


class LocalTransfer:
    """Copies, one after the other and at once: when `begin` returns all of them are done."""

    def __init__(self, pool: Tensor, host: Tensor) -> None:
        """``pool``: ``[blocks, ...]``, ``host``: ``[slots, ...]``, with equal blocks."""
        assert pool.shape[1:] == host.shape[1:], "a slot holds a block"
        self._pool = pool
        self._host = host
        self._step = 0

    def begin(self, step: int, ops: KVOps) -> None:
        """Run stores_out, copies and loads pair after pair, unless this step's have been run already."""
        if ops is NO_KV_OPS or step == self._step:
            return
        self._step = step
        pool, host = self._pool, self._host
        for block, slot in ops.stores_out:
            host[slot].copy_(pool[block])
        # In their order: a block that was copied from may have been given out and copied to after that.
        for source, target in ops.copies:
            pool[target].copy_(pool[source])
        for slot, block in ops.loads:
            pool[block].copy_(host[slot])
