"""Chooses tokens where the logits lie, for rows that need no more than the best or an unfiltered draw. Needs Triton.

A row of logits is half a megabyte for a vocabulary of 128,000; a token is 8 bytes. Rows with filters, rules, drafts, or
log-probabilities to tell go to another verifier, which may move them; so do those whose logits are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from octavo_worker.engine.types import SamplingParams, TokenLogprobs
from octavo_worker.kernels.triton.gumbel_argmax import gumbel_argmax
from octavo_worker.verify.base import ScoredToken, Verdict, Verifier, WantedRow
from octavo_worker.verify.sampler import Draw, filters_of, make_draw


class GpuVerifier:
    """Gives the tokens that the other verifier would give, but for ties within rounding of a logarithm."""

    def __init__(self, other: Verifier) -> None:
        self._other = other

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """One verdict a row."""
        verdicts: dict[int, Verdict] = {}
        firsts_R = np.cumsum([0, *(1 + len(row.draft) for row in rows)]).tolist()
        plain = [index for index, row in enumerate(rows) if _is_plain(row)]
        if plain:
            found = _draw([rows[i] for i in plain], logits_SV, [firsts_R[i] for i in plain])
            verdicts.update((i, verdict) for i, verdict in zip(plain, found, strict=True) if verdict is not None)
        others = [index for index in range(len(rows)) if index not in verdicts]
        if others:
            positions = [position for i in others for position in range(firsts_R[i], firsts_R[i + 1])]
            moved_SV = logits_SV if len(others) == len(rows) else logits_SV[_put(positions, logits_SV.device)]
            told = self._other.verify([rows[i] for i in others], moved_SV)
            verdicts.update(zip(others, told, strict=True))
        return [verdicts[index] for index in range(len(rows))]

    def score(self, tokens: Sequence[ScoredToken], logits_SV: Tensor) -> list[TokenLogprobs | None]:
        """As the other verifier."""
        return self._other.score(tokens, logits_SV)


def _is_plain(row: WantedRow) -> bool:
    asks_more = row.num_candidates or row.context is not None or row.params.num_logprobs is not None
    return bool(row.choices) and not row.draft.tokens and not asks_more and not _is_filtered(row.params)


def _is_filtered(params: SamplingParams) -> bool:
    return params.temperature != 0 and bool(params.top_k or params.top_p != 1.0 or params.min_p)


def _draw(rows: list[WantedRow], logits_SV: Tensor, positions: list[int]) -> list[Verdict | None]:
    """A verdict a row; None where its logits are not finite. One wait for the device."""
    device = logits_SV.device
    best_S = logits_SV.argmax(dim=1)
    # Of a row with a NaN, that is the best.
    peaks_S = logits_SV.gather(1, best_S[:, None]).squeeze(1)
    sources: list[int] = []
    draws: list[Draw] = []
    for row, position in zip(rows, positions, strict=True):
        if row.params.temperature != 0:
            for choice in row.choices:
                sources.append(position)
                draws.append(make_draw(row.params, choice=choice, position=row.position))
    drawn_D = best_S[:0]
    if draws:
        keys = np.array([draw.key for draw in draws], np.uint64).view(np.int64)
        temperatures = torch.from_numpy(filters_of(draws).temperatures).to(device)
        drawn_D = gumbel_argmax(logits_SV[_put(sources, device)], temperatures, torch.from_numpy(keys).to(device))
    told = torch.cat((best_S, torch.isfinite(peaks_S).long(), drawn_D)).tolist()
    num_rows = logits_SV.shape[0]
    best, is_finite, drawn = told[:num_rows], told[num_rows : 2 * num_rows], iter(told[2 * num_rows :])
    verdicts: list[Verdict | None] = []
    for row, position in zip(rows, positions, strict=True):
        is_greedy = row.params.temperature == 0
        tokens = [best[position] if is_greedy else next(drawn) for _ in row.choices]
        verdict = Verdict(tokens=(tokens[0],), siblings=tuple(tokens[1:]))
        verdicts.append(verdict if is_finite[position] else None)
    return verdicts


def _put(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64).to(device)
