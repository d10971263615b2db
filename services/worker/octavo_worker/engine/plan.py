"""The two values that cross the border to the executor, once each per step. Frozen, tuples only, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo_worker.engine.types import BlockId, HostSlot, SamplingParams, SeqId, Token, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Guessed tokens as a tree, parents first. A list of guesses is a chain; no guess is the empty draft."""

    tokens: tuple[Token, ...] = ()
    # Index of each node's parent within the draft; -1 hangs on the row's last token.
    parents: tuple[int, ...] = ()

    @classmethod
    def chain(cls, tokens: tuple[Token, ...]) -> Draft:
        """A draft in which each token follows the one before it."""
        return cls(tokens=tokens, parents=tuple(range(-1, len(tokens) - 1)))

    def head(self, num_tokens: int) -> Draft:
        """The first nodes; a tree again, because parents come first."""
        if num_tokens >= len(self.tokens):
            return self
        return Draft(tokens=self.tokens[:num_tokens], parents=self.parents[:num_tokens])

    def __len__(self) -> int:
        return len(self.tokens)


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """One sequence's share of a step.

    Fed tokens occupy positions [start, start + len(tokens)), draft node i the slot start + len(tokens) + i.
    """

    id: SeqId
    # Tokens of the sequence whose KV exists already.
    start: int
    tokens: tuple[Token, ...]
    draft: Draft = NO_DRAFT
    # Blocks that join the table at index first_block: table[first_block:] = new_blocks. Said by index, so that
    # applying a row twice (a step that was repeated) is harmless. The first time these are all of its blocks.
    first_block: int
    new_blocks: tuple[BlockId, ...]
    # Absolute positions whose logits are needed: empty while known tokens remain, else the last fed one. Nodes of the
    # draft follow from the draft. The token chosen from position p has position p + 1.
    wants: range
    # Choices for which a token is drawn from the last wanted position: the row's own, or, where the prompt of a request
    # with several ends, all of them. Empty where nothing is drawn.
    draws: tuple[int, ...] = ()
    # So many of the most likely next tokens are asked for, with log-probabilities (a beam); nothing is drawn then.
    num_candidates: int = 0
    # Known tokens that follow the wanted positions, for log-probabilities of the prompt: the first follows wants.start.
    scored: tuple[Token, ...] = ()
    # Set when the executor does not know the row: the first time, and again after a preemption.
    params: SamplingParams | None = None
    # With params, if these need it: the tokens [0, start), which the executor may never have been fed.
    history: tuple[Token, ...] = ()
    # Length of the sequence's prompt, for models whose angles depend on it.
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KVOps:
    """Movements of blocks, run in this order, pair after pair: stores_out, copies, loads, the forward, stores_new.

    A block that is written by one of them, or given to a row, may be the source of an earlier one.
    """

    # (block, slot of host memory)
    stores_out: tuple[tuple[BlockId, HostSlot], ...] = ()
    # (from, to)
    copies: tuple[tuple[BlockId, BlockId], ...] = ()
    # (slot of host memory, block)
    loads: tuple[tuple[HostSlot, BlockId], ...] = ()
    stores_new: tuple[BlockId, ...] = ()


NO_KV_OPS = KVOps()


@dataclass(frozen=True, slots=True, kw_only=True)
class KVDone:
    """Which movements ended that are not bound to their step; all others have ended when its result is there."""

    # Sequences whose held blocks may go back to the pool.
    saved: tuple[SeqId, ...] = ()


NO_KV_DONE = KVDone()


class Fork(NamedTuple):
    """A sequence that begins as a copy of another: what the executor knows of ``origin`` holds for ``twin``, too.

    Nothing is told of the twin but what comes after: its table and tokens are the origin's up to its first row.
    """

    origin: SeqId
    twin: SeqId


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Everything the executor needs for one step."""

    step: int
    rows: tuple[RowPlan, ...]
    kv: KVOps = NO_KV_OPS
    # Taken from what is known before the step. A twin may have the name of a sequence that is gone, and an origin may
    # itself be gone.
    forks: tuple[Fork, ...] = ()
    # Sequences that the executor must forget before it looks at the rows (finished, aborted, preempted). It may not
    # know some of them.
    gone: tuple[SeqId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What the executor found for one row."""

    # Accepted nodes of the draft, then one token more; empty when the row wanted nothing.
    tokens: tuple[Token, ...] = ()
    # One a token, from the node that made it; empty when nobody asked.
    logprobs: tuple[TokenLogprobs, ...] = ()
    # Tokens of the other choices in ``draws``, in their order, and what is told of them.
    siblings: tuple[Token, ...] = ()
    sibling_logprobs: tuple[TokenLogprobs, ...] = ()
    # The candidates that were asked for: (token, log-probability), best first; empty when no token may follow.
    candidates: tuple[tuple[Token, float], ...] | None = None
    # One for each of the row's ``scored`` tokens.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    # The next proposal.
    draft: Draft = NO_DRAFT
    signals: Mapping[str, float] = field(default_factory=dict[str, float])
    # The row failed; the other fields mean nothing then.
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The executor's answer to a BatchPlan: one result per row."""

    rows: Mapping[SeqId, RowResult]
    kv: KVDone = NO_KV_DONE
