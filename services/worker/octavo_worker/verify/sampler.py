"""Draws tokens: temperature, then top-k, then top-p, then the largest of logit + noise among the survivors.

The only place with randomness, and that is a function of the row's key. A row's draw depends on its own logits alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_worker.verify.greedy import best_tokens
from octavo_worker.verify.noise import Label, gumbels, noise_key, uniforms

# So many candidates are looked at before a whole row is sorted.
_FIRST_LOOK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How one row of logits becomes a token."""

    temperature: float
    top_k: int
    top_p: float
    key: int

    @property
    def filters(self) -> bool:
        """Whether some tokens may be excluded."""
        return self.top_k > 0 or self.top_p < 1.0


def make_draw(*, temperature: float, top_k: int, top_p: float, seed: int, choice: int, position: int) -> Draw:
    """The draw for one position of one sequence."""
    key = noise_key(seed=seed, choice=choice, position=position, label=Label.TARGET)
    return Draw(temperature=temperature, top_k=top_k, top_p=top_p, key=key)


def draw_tokens(logits_SV: Tensor, draws: Sequence[Draw | None]) -> tuple[list[int], list[bool]]:
    """One token a row (None is greedy), and whether the row's logits were finite where it matters."""
    best_S, trusted_S = best_tokens(logits_SV)
    tokens = [int(token) for token in best_S]
    drawn = [row for row, draw in enumerate(draws) if draw is not None and trusted_S[row]]
    filtered = [row for row in drawn if _draw(draws, row).filters]
    looks = _look(logits_SV, filtered, draws)
    for row in drawn:
        draw = _draw(draws, row)
        logits_V = logits_SV[row].numpy()
        if draw.filters:
            ids, logits = _survivors(logits_V, draw, *looks[row])
            scores = logits.astype(np.float64) / draw.temperature + gumbels(draw.key, ids)
            tokens[row] = int(ids[np.argmax(scores)])
        else:
            tokens[row] = _draw_unfiltered(logits_V, int(best_S[row]), draw)
    return tokens, [bool(trusted) for trusted in trusted_S]


def _draw(draws: Sequence[Draw | None], row: int) -> Draw:
    draw = draws[row]
    assert draw is not None
    return draw


def _look(
    logits_SV: Tensor, rows: list[int], draws: Sequence[Draw | None]
) -> dict[int, tuple[np.ndarray, np.ndarray, float]]:
    """The largest logits of some rows (ids, logits; falling), and each row's sum of exp((logit - largest) / T)."""
    if not rows:
        return {}
    size = logits_SV.shape[1]
    # One more than top_k: an equal logit behind the border must be seen.
    wanted = max(d.top_k + 1 if 0 < d.top_k < _FIRST_LOOK else _FIRST_LOOK for d in (_draw(draws, r) for r in rows))
    part_RV = logits_SV if len(rows) == logits_SV.shape[0] else logits_SV[rows]
    values_RK, ids_RK = part_RV.topk(min(wanted, size), dim=-1)
    temperatures_R = torch.tensor([_draw(draws, row).temperature for row in rows], dtype=torch.float64)
    totals_R = [0.0] * len(rows)
    unbounded = [i for i, row in enumerate(rows) if not 0 < _draw(draws, row).top_k < size]
    if unbounded:
        scaled = (part_RV[unbounded] - values_RK[unbounded, :1]) / temperatures_R[unbounded, None].to(torch.float32)
        scaled.exp_()
        for i, weights_V in zip(unbounded, scaled, strict=True):
            # Row by row: a sum over several rows at once may be split among threads in another order.
            totals_R[i] = float(weights_V.sum(dtype=torch.float64))
    return {row: (ids_RK[i].numpy(), values_RK[i].numpy(), totals_R[i]) for i, row in enumerate(rows)}


def _survivors(
    logits_V: np.ndarray, draw: Draw, ids: np.ndarray, values: np.ndarray, total: float
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logits that pass top-k, then top-p. Equal logits rank by id."""
    found = _cut(draw, ids, values, total, size=len(logits_V))
    if found is None:
        ids = np.arange(len(logits_V))
        found = _cut(draw, ids, logits_V, total, size=len(logits_V))
        assert found is not None
    return found


def _cut(
    draw: Draw, ids: np.ndarray, values: np.ndarray, total: float, *, size: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Apply both filters to the largest logits; None when these do not suffice to tell."""
    order = np.lexsort((ids, -values))
    ids, values = ids[order], values[order]
    complete = len(ids) == size
    # Behind the last value there may be equals with a lower id, unless everything is here.
    num_certain = size if complete else int(np.searchsorted(-values, -values[-1], side="left"))
    num_kept = size
    if 0 < draw.top_k < size:
        num_kept = draw.top_k
        if num_kept > num_certain:
            return None
        ids, values = ids[:num_kept], values[:num_kept]
    if draw.top_p < 1.0:
        weights = np.exp((values.astype(np.float64) - float(values[0])) / draw.temperature)
        reached = np.cumsum(weights)
        mass = reached[-1] if num_kept < size or complete else total
        num_kept = int(np.searchsorted(reached, draw.top_p * mass, side="left")) + 1
        if num_kept > min(num_certain, len(ids)):
            if not complete and len(ids) != draw.top_k:
                return None
            num_kept = len(ids)
    elif num_kept > len(ids):
        return None
    return ids[:num_kept], values[:num_kept]


def _draw_unfiltered(logits_V: np.ndarray, best: int, draw: Draw) -> int:
    """Draw among all tokens, with logarithms only for those that can still win.

    With u the uniform of a token, its noise -log(-log u) is below -log(1 - u). So a token whose logit - log(1 - u)
    stays below the score of the best logit cannot win.
    """
    scaled = logits_V.astype(np.float64)
    scaled /= draw.temperature
    bar = scaled[best] + gumbels(draw.key, np.array([best]))[0]
    uniform_V = uniforms(draw.key, np.arange(len(logits_V)))
    # 1 + 1e-9: rounding of this test must not exclude the winner.
    ids = np.flatnonzero((1.0 - uniform_V) <= np.exp(np.minimum(scaled - bar, 0.0)) * (1 + 1e-9))
    if not len(ids):
        return best
    scores = scaled[ids] - np.log(-np.log(uniform_V[ids]))
    return int(ids[np.argmax(scores)])
