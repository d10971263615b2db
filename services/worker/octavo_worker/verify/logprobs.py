"""Log-probabilities of tokens from rows of logits, in float64. A row's numbers depend on its own logits alone."""

from __future__ import annotations

import numpy as np

from octavo_worker.engine.types import Token


def log_sum_exp(logits_V: np.ndarray) -> float:
    """What a logit loses to become a log-probability; NaN or infinite when the row is not finite where it matters."""
    best = float(logits_V.max())
    if not np.isfinite(best):
        return best
    weights_V = np.exp(logits_V.astype(np.float64) - best)
    return best + float(np.log(weights_V.sum()))


def most_likely(logits_V: np.ndarray, num_tokens: int) -> tuple[tuple[Token, float], ...]:
    """The most likely tokens with their log-probabilities, best first; equals in order of their ids."""
    num_tokens = min(num_tokens, len(logits_V))
    if not num_tokens:
        return ()
    total = log_sum_exp(logits_V)
    border = np.partition(logits_V, -num_tokens)[-num_tokens]
    above = np.flatnonzero(logits_V > border)
    # flatnonzero counts upwards: of those at the border the lowest ids come in.
    ids = np.concatenate([above, np.flatnonzero(logits_V == border)[: num_tokens - len(above)]])
    order = np.lexsort((ids, -logits_V[ids]))
    return tuple((int(ids[i]), float(logits_V[ids[i]]) - total) for i in order)
