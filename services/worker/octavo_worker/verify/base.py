"""The contract of verification: which logits belong to which row, and what comes back. Knows no batches and no KV.

S sampled positions of all rows one after another, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo_worker.engine.plan import NO_DRAFT, Draft
from octavo_worker.engine.types import SamplingParams, Token, TokenLogprobs
from octavo_worker.verify.context import TokenContext


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRow:
    """One row's share of the logits: that of its last fed token, then one for each node of its draft."""

    # A token is drawn for each of these from the first logits; they key the noise beside the seed. Several only without
    # a draft; none where nothing is drawn.
    choices: tuple[int, ...]
    # Absolute position of the token that the first logits choose.
    position: int
    params: SamplingParams
    draft: Draft = NO_DRAFT
    # So many of the most likely tokens are told instead of a draw.
    num_candidates: int = 0
    # Set when anything but the model, temperature and filters has a say.
    context: TokenContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one row gets: accepted nodes of the draft (their indices), and all new tokens, one more than those."""

    tokens: tuple[Token, ...] = ()
    accepted: tuple[int, ...] = ()
    # Tokens of the row's other choices.
    siblings: tuple[Token, ...] = ()
    # (token, log-probability), best first; empty when the row's rules allow no token, None when nobody asked.
    candidates: tuple[tuple[Token, float], ...] | None = None
    # One a token, and one a sibling, where the row's parameters ask for them.
    logprobs: tuple[TokenLogprobs, ...] = ()
    sibling_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A known token of which the log-probability is asked."""

    token: Token
    # How many of the likeliest alternatives are told, too.
    num_top: int


class Verifier(Protocol):
    """Turns logits into tokens."""

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """One verdict a row. A row whose logits are not finite gets an error; the others do not notice.

        The logits may be overwritten.
        """
        ...

    def score(self, tokens: Sequence[ScoredToken], logits_SV: Tensor) -> list[TokenLogprobs | None]:
        """The model's own log-probabilities of known tokens, one a row of logits; None where these are not finite."""
        ...
