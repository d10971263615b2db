"""Draws tokens: temperature, then top-k, then top-p, then min-p, then the largest of logit + noise of those left.

The only place with randomness, and that is a function of the row's key. A row's draw depends on its own logits alone.
The filters' order is Hugging Face's: top-p is a share of what top-k left, min-p a part of the best one's probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo_worker.engine.types import SamplingParams
from octavo_worker.kernels.logits import Filters, LogitKernels
from octavo_worker.verify.noise import Label, noise_key

# Below it the best token wins anyway, and quotients stay finite.
_LOWEST_TEMPERATURE = 1e-30
# Above it all tokens are alike anyway, and the quotient 1 / temperature stays a float32 that is not 0: times the
# infinity of a forbidden token that would be NaN.
_HIGHEST_TEMPERATURE = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How one row of logits becomes a token; a temperature of 0 takes the best, of equal ones the lowest id."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    key: int = 0


GREEDY = Draw()
# Changes nothing: for log-probabilities of the model itself.
PLAIN = Draw(temperature=1.0)


def make_draw(params: SamplingParams, *, choice: int, position: int) -> Draw:
    """The draw for one position of one sequence."""
    if params.temperature == 0:
        return GREEDY
    return Draw(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        key=noise_key(seed=params.seed, choice=choice, position=position, label=Label.TARGET),
    )


def filters_of(draws: Sequence[Draw]) -> Filters:
    """The same as columns."""
    return Filters(
        temperatures=np.array(
            [
                draw.temperature and min(max(draw.temperature, _LOWEST_TEMPERATURE), _HIGHEST_TEMPERATURE)
                for draw in draws
            ],
            np.float64,
        ),
        top_ks=np.array([draw.top_k for draw in draws], np.int64),
        top_ps=np.array([draw.top_p for draw in draws], np.float64),
        min_ps=np.array([draw.min_p for draw in draws], np.float64),
    )


class Sampler:
    """Draws for many rows at once."""

    def __init__(self, kernels: LogitKernels) -> None:
        self._kernels = kernels

    def draw(self, logits_SV: Tensor, sources: Sequence[int], draws: Sequence[Draw]) -> tuple[list[int], list[bool]]:
        """A token for each draw from the logits at its source, and whether those are finite where it matters."""
        keys = np.array([draw.key for draw in draws], np.uint64)
        tokens, trusted = self._kernels.draw(logits_SV, np.array(sources, np.int64), filters_of(draws), keys)
        return tokens.tolist(), trusted.tolist()
