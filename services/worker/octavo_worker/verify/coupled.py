"""Accepts a draft where it equals the target's own draws, so tokens are the same with and without drafts.

Serves greedy rows (temperature 0) and seeded ones alike: the noise of a position is fixed by the row's key.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo_worker.engine.plan import Draft
from octavo_worker.verify.base import Verdict, WantedRow
from octavo_worker.verify.logprobs import most_likely
from octavo_worker.verify.sampler import Draw, draw_tokens, make_draw

NOT_FINITE = "the model's logits are not finite"


class Coupled:
    """The verifier of greedy and seeded requests."""

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """Draw at every node, then walk from the root along nodes that equal the draws."""
        draws: list[Draw | None] = []
        # Which logits each draw is from: several choices share those of their root.
        sources: list[int] = []
        first = 0
        for row in rows:
            assert len(row.choices) < 2 or not row.draft.tokens, "a draft belongs to one choice"
            for choice in row.choices or (0,):
                draws.append(_draw_at(row, choice, 0))
                sources.append(first)
            for node, depth in enumerate(depths(row.draft)):
                draws.append(_draw_at(row, next(iter(row.choices)), depth))
                sources.append(first + 1 + node)
            first += 1 + len(row.draft)
        wanted_SV = logits_SV if len(sources) == first else logits_SV[sources]
        tokens, trusted = draw_tokens(wanted_SV, draws)
        verdicts: list[Verdict] = []
        first = 0
        for row in rows:
            last = first + max(1, len(row.choices)) + len(row.draft)
            verdicts.append(_verdict(row, wanted_SV[first], tokens[first:last], trusted[first:last]))
            first = last
        return verdicts


def _verdict(row: WantedRow, logits_V: Tensor, tokens: list[int], trusted: list[bool]) -> Verdict:
    if not trusted[0]:
        return Verdict(error=NOT_FINITE)
    if row.num_candidates:
        return Verdict(candidates=most_likely(logits_V.numpy(), row.num_candidates))
    if not row.choices:
        return Verdict()
    if len(row.choices) > 1:
        return Verdict(tokens=(tokens[0],), siblings=tuple(tokens[1:]))
    return _walk(row.draft, tokens, trusted)


def depths(draft: Draft) -> list[int]:
    """Distance of each node from the last fed token; parents come first in a draft."""
    found: list[int] = []
    for parent in draft.parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def _draw_at(row: WantedRow, choice: int, depth: int) -> Draw | None:
    params = row.params
    if params.temperature == 0 or not row.choices:
        return None
    return make_draw(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        choice=choice,
        position=row.position + depth,
    )


def _walk(draft: Draft, tokens: list[int], trusted: list[bool]) -> Verdict:
    """tokens[0] follows the last fed token, tokens[1 + i] follows node i."""
    accepted: list[int] = []
    node = -1
    while True:
        if not trusted[node + 1]:
            return Verdict(error=NOT_FINITE)
        token = tokens[node + 1]
        child = next((i for i, p in enumerate(draft.parents) if p == node and draft.tokens[i] == token), None)
        if child is None:
            return Verdict(tokens=(*(draft.tokens[i] for i in accepted), token), accepted=tuple(accepted))
        accepted.append(child)
        node = child
