"""The next token from logits: greedy, or drawn after temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo_device.errors import DoesNotFit

__all__ = ["Sampler", "Sampling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest; ``top_k`` 0 and ``top_p`` 1 leave all."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise DoesNotFit("a temperature and top-k are 0 or more, and top-p is above 0 and at most 1")


class Sampler:
    """Draws one token after another; the same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def next(self, logits_V: NDArray[np.float32]) -> int:
        """A token id."""
        asked = self._sampling
        if asked.temperature == 0:
            return int(np.argmax(logits_V))
        order_V = np.argsort(-logits_V, kind="stable")
        kept = order_V[: asked.top_k] if asked.top_k else order_V
        scaled = logits_V[kept].astype(np.float64) / asked.temperature
        chances = np.exp(scaled - scaled[0])
        chances /= chances.sum()
        # The likeliest tokens whose sum reaches top_p, and never none.
        before = np.cumsum(chances) - chances
        chances = np.where(before < asked.top_p, chances, 0.0)
        return int(self._random.choice(kept, p=chances / chances.sum()))
