"""The contract of verification: which logits belong to which row, and what comes back. Knows no batches and no KV.

S sampled positions of all rows one after another, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo_worker.engine.plan import Draft
from octavo_worker.engine.types import SamplingParams, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRow:
    """One row's share of the logits: that of its last fed token, then one for each node of its draft."""

    # Keys the noise beside the seed.
    choice: int
    # Absolute position of the token that the first logits choose.
    position: int
    params: SamplingParams
    draft: Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one row gets: accepted nodes of the draft (their indices), and all new tokens, one more than those."""

    tokens: tuple[Token, ...]
    accepted: tuple[int, ...] = ()
    error: str | None = None


class Verifier(Protocol):
    """Turns logits into tokens."""

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """One verdict a row. A row whose logits are not finite gets an error; the others do not notice."""
        ...
