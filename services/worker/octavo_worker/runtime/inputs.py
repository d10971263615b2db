"""Turns a plan into tensors. Keeps each sequence's block table between steps, so that a step costs what is new in it.

T fed tokens of all rows, S wanted positions, R rows, B blocks of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_worker.attention.base import AttnBatch
from octavo_worker.engine.plan import Fork, RowPlan
from octavo_worker.engine.types import SamplingParams, SeqId
from octavo_worker.verify.base import ScoredToken, WantedRow
from octavo_worker.verify.context import Grammars, TokenContext, needs_context


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInputs:
    """What the model and the verifier need for one step."""

    tokens_T: Tensor
    positions_T: Tensor
    # Of the prompt that each token belongs to.
    prompt_lengths_T: Tensor
    attention: AttnBatch
    # Indices into T, row after row, of the positions whose logits are wanted.
    wanted_S: Tensor
    # Rows that want something, in the order of wanted_S.
    wanted_ids: tuple[SeqId, ...]
    wanted_rows: tuple[WantedRow, ...]
    # Indices into T of the positions before known tokens of which log-probabilities are wanted, and what is asked.
    scored_S: Tensor
    scored_ids: tuple[SeqId, ...]
    scored_tokens: tuple[ScoredToken, ...]


class InputBuilder:
    """Block tables and parameters of the sequences that the executor knows."""

    def __init__(self, *, block_size: int, max_blocks: int, grammars: Grammars | None = None) -> None:
        self._block_size = block_size
        self._grammars = grammars
        self._tables = np.zeros((8, max_blocks), np.int32)
        self._slots: dict[SeqId, int] = {}
        self._params: dict[SeqId, SamplingParams] = {}
        # Only of sequences for which anything but the model, temperature and filters has a say.
        self._contexts: dict[SeqId, TokenContext] = {}
        self._free = list(range(len(self._tables)))

    @property
    def num_known(self) -> int:
        """Sequences that are remembered."""
        return len(self._slots)

    def renew(self, forks: Sequence[Fork], gone: Sequence[SeqId]) -> None:
        """Take sequences that begin as copies of known ones, and drop those that are gone; unknown ones are no error.

        Copies are of what was known before, under names that may have belonged to sequences that are gone.
        """
        copies = [(twin, *self._state_of(origin)) for origin, twin in forks]
        self._forget(gone)
        for twin, params, context, table in copies:
            slot = self._slots[twin] = self._take_slot()
            self._params[twin], self._tables[slot] = params, table
            if context is not None:
                self._contexts[twin] = context

    def _state_of(self, seq_id: SeqId) -> tuple[SamplingParams, TokenContext | None, np.ndarray]:
        context = self._contexts.get(seq_id)
        table = self._tables[self._slots[seq_id]].copy()
        return self._params[seq_id], None if context is None else context.copy(), table

    def _forget(self, ids: Sequence[SeqId]) -> None:
        for seq_id in ids:
            slot = self._slots.pop(seq_id, None)
            if slot is not None:
                self._free.append(slot)
                del self._params[seq_id]
                self._contexts.pop(seq_id, None)

    def build(self, rows: Sequence[RowPlan]) -> ForwardInputs:
        """Apply the rows' news and lay out their tokens. Applying a row twice gives the same."""
        slots_R = np.array([self._apply(row) for row in rows], np.int64)
        starts_R = np.array([row.start for row in rows], np.int32)
        counts_R = np.array([len(row.tokens) + len(row.draft) for row in rows], np.int32)
        tokens_T: list[int] = []
        for row in rows:
            assert not row.draft.tokens, "no drafter is configured"
            tokens_T.extend(row.tokens)
        first_R = np.cumsum(counts_R) - counts_R
        rows_T = np.repeat(np.arange(len(rows)), counts_R)
        positions_T = np.arange(len(tokens_T)) + np.repeat(starts_R.astype(np.int64) - first_R, counts_R)
        num_blocks = -(-int((starts_R + counts_R).max()) // self._block_size)
        tables_RB = self._tables[slots_R, :num_blocks]
        blocks_T = tables_RB[rows_T, positions_T // self._block_size].astype(np.int64)
        wanted_S: list[int] = []
        wanted: list[RowPlan] = []
        scored_S: list[int] = []
        scored: list[tuple[SeqId, ScoredToken]] = []
        for row, first in zip(rows, first_R.tolist(), strict=True):
            wants_S = [first + position - row.start for position in row.wants]
            scored_S += wants_S[: len(row.scored)]
            scored += [(row.id, asked) for asked in self._scored(row)]
            if len(row.scored) < len(wants_S):
                wanted_S.append(wants_S[-1])
                wanted.append(row)
        return ForwardInputs(
            tokens_T=torch.tensor(tokens_T, dtype=torch.int64),
            positions_T=torch.from_numpy(positions_T),
            prompt_lengths_T=torch.from_numpy(np.repeat([row.num_prompt_tokens for row in rows], counts_R)),
            attention=AttnBatch(
                starts_R=starts_R,
                num_tokens_R=counts_R,
                tables_RB=tables_RB,
                slots_T=blocks_T * self._block_size + positions_T % self._block_size,
            ),
            wanted_S=torch.tensor(wanted_S, dtype=torch.int64),
            wanted_ids=tuple(row.id for row in wanted),
            wanted_rows=tuple(self._wanted(row) for row in wanted),
            scored_S=torch.tensor(scored_S, dtype=torch.int64),
            scored_ids=tuple(seq_id for seq_id, _ in scored),
            scored_tokens=tuple(asked for _, asked in scored),
        )

    def fresh_blocks(self, rows: Sequence[RowPlan]) -> list[int]:
        """Blocks that the rows bring and in which nothing was computed yet: not those found in the prefix cache."""
        found: list[int] = []
        for row in rows:
            num_computed = -(-row.start // self._block_size)
            found.extend(b for i, b in enumerate(row.new_blocks, row.first_block) if i >= num_computed)
        return found

    def _apply(self, row: RowPlan) -> int:
        if row.params is not None:
            self._params[row.id] = row.params
            if row.id not in self._slots:
                self._slots[row.id] = self._take_slot()
            self._contexts.pop(row.id, None)
            if needs_context(row.params):
                self._contexts[row.id] = self._make_context(row, row.params)
        context = self._contexts.get(row.id)
        if context is not None:
            context.know(row.start, row.tokens)
        slot = self._slots[row.id]
        last = row.first_block + len(row.new_blocks)
        self._tables[slot, row.first_block : last] = row.new_blocks
        return slot

    def _make_context(self, row: RowPlan, params: SamplingParams) -> TokenContext:
        matcher = None
        if params.grammar:
            assert self._grammars is not None, "no grammars are served"
            matcher = self._grammars.get(params.grammar)
        context = TokenContext(params, num_prompt_tokens=row.num_prompt_tokens, matcher=matcher)
        context.know(0, row.history)
        return context

    def _take_slot(self) -> int:
        if not self._free:
            num_slots = len(self._tables)
            self._tables = np.concatenate([self._tables, np.zeros_like(self._tables)])
            self._free = list(range(num_slots, 2 * num_slots))
        return self._free.pop()

    def _wanted(self, row: RowPlan) -> WantedRow:
        return WantedRow(
            # An engine that plans one choice a request need not name it.
            choices=row.draws or (() if row.num_candidates else (row.id.choice,)),
            position=row.wants[-1] + 1,
            params=self._params[row.id],
            draft=row.draft,
            num_candidates=row.num_candidates,
            context=self._contexts.get(row.id),
        )

    def _scored(self, row: RowPlan) -> list[ScoredToken]:
        num_top = self._params[row.id].num_prompt_logprobs or 0
        return [ScoredToken(token=token, num_top=num_top) for token in row.scored]
