"""The contract of moving blocks. Knows no sequences: the plan says which block goes where."""

from __future__ import annotations

from typing import Protocol

from octavo_worker.engine.plan import KVOps


class KVTransfer(Protocol):
    """Worker half of what the scheduler decided about blocks."""

    def begin(self, step: int, ops: KVOps) -> None:
        """Do what must be done before the step's forward pass: stores_out, copies, loads, in this order.

        A step may come again, in parts, after its forward pass has failed half-way; by then rows may have written into
        blocks that were stored or copied before. So a step's operations are done once, whatever comes after.
        """
        ...
