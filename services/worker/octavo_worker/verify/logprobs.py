"""Log-probabilities of tokens, their ranks and the likeliest alternatives. A row's numbers depend on itself alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo_worker.engine.types import Token, TokenLogprobs
from octavo_worker.kernels.logits import LogitKernels, Told
from octavo_worker.verify.sampler import PLAIN, Draw, filters_of

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be told of one row of logits."""

    # Index of the logits.
    source: int
    token: Token
    num_top: int
    # Whether the question is about probabilities after penalties and masks, and then, after which filters.
    is_processed: bool = False
    after: Draw = PLAIN


class Logprobs:
    """Tells log-probabilities of many rows at once."""

    def __init__(self, kernels: LogitKernels) -> None:
        self._kernels = kernels

    def tell(self, logits_SV: Tensor, asked: Sequence[Asked]) -> list[TokenLogprobs | None]:
        """One answer for each question; None where the logits are not finite."""
        if not asked:
            return []
        told = self._kernels.tell(
            logits_SV,
            np.array([ask.source for ask in asked], np.int64),
            filters_of([ask.after for ask in asked]),
            np.array([ask.token for ask in asked], np.int64),
            max(ask.num_top for ask in asked),
        )
        logprobs, ranks = told.logprobs.tolist(), told.ranks.tolist()
        return [
            TokenLogprobs(logprobs[i], ranks[i], _top(told, i)[: ask.num_top]) if told.trusted[i] else None
            for i, ask in enumerate(asked)
        ]

    def best(self, logits_V: Tensor, num_tokens: int, raw_V: Tensor) -> tuple[tuple[Token, float], ...]:
        """The likeliest tokens that are not forbidden, best first; equals in order of their ids.

        Their log-probabilities are not renormalised: the sum is that of the model's own logits, ``raw_V``.
        """
        told, raw = (self._ask(row_V, num_tokens) for row_V in (logits_V, raw_V))
        missing = float(told.totals[0] - raw.totals[0])
        return tuple((token, value + missing) for token, value in _top(told, 0))

    def _ask(self, logits_V: Tensor, num_top: int) -> Told:
        nobody = np.array([_NO_TOKEN], np.int64)
        return self._kernels.tell(logits_V[None], np.zeros(1, np.int64), filters_of([PLAIN]), nobody, num_top)


def _top(told: Told, index: int) -> tuple[tuple[Token, float], ...]:
    count = told.num_top[index]
    tokens, values = told.top_tokens[index, :count].tolist(), told.top_logprobs[index, :count].tolist()
    return tuple(zip(tokens, values, strict=True))
