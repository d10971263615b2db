"""Which sequences a step serves, and in which order: two styles over the same planner.

Pure policies: what a row needs, who must make room for it and how it is committed are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from octavo_worker.engine.batch import Batch
from octavo_worker.engine.planner import Planner
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.types import Limits


class Style(Protocol):
    """Fills batches."""

    def fit(self, limits: Limits) -> Limits:
        """The limits under which the style can serve every sequence that they allow."""
        ...

    def fill(self, batch: Batch, planner: Planner) -> None:
        """Plan the rows of one step."""
        ...


class MixedSteps:
    """v1: chunks of prompts beside rows that decode, in three passes under one budget of tokens."""

    def fit(self, limits: Limits) -> Limits:
        """Any limits do."""
        return limits

    def fill(self, batch: Batch, planner: Planner) -> None:
        """Rows that only decode, then running ones with more pending, then waiting ones."""
        _decode(batch, planner)
        if batch.rows:
            batch.prompt_budget = min(batch.budget, planner.limits.max_prompt_tokens_beside_decode)
        _catch_up(batch, planner)
        planner.admit(batch)


class PhasedSteps:
    """v0: a step computes whole prompts, or it decodes. Three lines: waiting, running, swapped.

    While nothing is swapped out, prompts come first: a step of prompts if any can be admitted, else one that decodes.
    While something is, only decoding frees its place, and it comes back before any prompt is begun, but for those of
    older sequences that were preempted, too, and are computed again: who came first stays ahead.
    """

    def fit(self, limits: Limits) -> Limits:
        """A whole prompt must fit into a step."""
        num_tokens = max(limits.max_batch_tokens, limits.max_sequence_tokens)
        return replace(limits, max_batch_tokens=num_tokens, max_chunk_tokens=None)

    def fill(self, batch: Batch, planner: Planner) -> None:
        """Prompts, or else what runs, then what is swapped."""
        returning = planner.roster.returning
        has_swapped = bool(returning) and bool(returning[0].parked)
        if not has_swapped:
            planner.admit(batch, whole_prompts=True)
            if batch.rows:
                return
        _decode(batch, planner)
        _catch_up(batch, planner)
        if has_swapped and not batch.num_preempted:
            planner.admit_stored()


STYLES: Mapping[str, Callable[[], Style]] = {"v1": MixedSteps, "v0": PhasedSteps}
"""By name in settings."""


def _decode(batch: Batch, planner: Planner) -> None:
    """A row for everyone that has one token pending, with as much of its draft as the budget leaves."""
    decoding = [seq for seq in planner.roster.running if seq.num_pending == 1]
    # Drafts leave a token for each row, so that none is starved by the guesses of others.
    draft_budget = batch.budget - planner.roster.num_rows
    for seq in decoding:
        if seq.id in batch.rows:
            # With the first beam of its search.
            continue
        draft = seq.draft
        if len(draft):
            draft = draft.head(max(0, min(draft_budget, _room_for_drafts(planner.limits, seq))))
        if planner.plan_row(batch, seq, 1, draft):
            draft_budget -= len(draft)


def _catch_up(batch: Batch, planner: Planner) -> None:
    """Running rows with more than one token pending."""
    for seq in [seq for seq in planner.roster.running if seq.num_pending > 1]:
        if seq.id not in batch.rows:
            planner.plan_chunk(batch, seq)


def _room_for_drafts(limits: Limits, seq: Sequence) -> int:
    """Drafts that could still become output: one token follows the last accepted one."""
    to_max_tokens = seq.request.params.max_tokens - seq.num_output
    return min(to_max_tokens, limits.max_sequence_tokens - len(seq.tokens)) - 1
