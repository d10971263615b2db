"""A plan in the making: its rows, and what is left of the budgets that they share. Knows no pool and no queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_worker.engine.plan import RowPlan
from octavo_worker.engine.tables import Copy
from octavo_worker.engine.types import SeqId


@dataclass(slots=True, kw_only=True)
class Batch:
    """The rows of one step so far."""

    # Tokens that the step may still take.
    budget: int
    # What of it is left for known tokens beside one-token rows.
    prompt_budget: int
    rows: dict[SeqId, RowPlan] = field(default_factory=dict[SeqId, RowPlan])
    # Blocks to copy before a row writes into its own.
    copies: dict[SeqId, Copy] = field(default_factory=dict[SeqId, Copy])
    num_decode_tokens: int = 0
    num_prompt_tokens: int = 0
    num_preempted: int = 0
    # Of these, to host memory.
    num_swapped: int = 0
    # Tokens that rows begun here could have had from the cache, and had.
    num_asked_tokens: int = 0
    num_found_tokens: int = 0

    def take(self, row: RowPlan, *, decodes: bool) -> None:
        """Add a row; one that decodes has one known token, and its draft."""
        self.rows[row.id] = row
        self._count(row, decodes, 1)

    def refund(self, row: RowPlan, *, decodes: bool) -> None:
        """Take a row out again: its sequence was preempted for another one."""
        del self.rows[row.id]
        self.copies.pop(row.id, None)
        self._count(row, decodes, -1)

    def _count(self, row: RowPlan, decodes: bool, sign: int) -> None:
        num_tokens = sign * (len(row.tokens) + len(row.draft))
        self.budget -= num_tokens
        if decodes:
            self.num_decode_tokens += num_tokens
        else:
            self.prompt_budget -= num_tokens
            self.num_prompt_tokens += num_tokens
