"""Accepts a draft where it equals the target's own draws, so tokens are the same with and without drafts.

Serves greedy rows (temperature 0) and seeded ones alike: the noise of a position is fixed by the row's key.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo_worker.engine.plan import Draft
from octavo_worker.verify.base import Verdict, WantedRow
from octavo_worker.verify.sampler import Draw, draw_tokens, make_draw


class Coupled:
    """The verifier of greedy and seeded requests."""

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """Draw at every node, then walk from the root along nodes that equal the draws."""
        draws: list[Draw | None] = []
        for row in rows:
            draws.extend(_draw_at(row, depth) for depth in (0, *depths(row.draft)))
        tokens, trusted = draw_tokens(logits_SV, draws)
        verdicts: list[Verdict] = []
        first = 0
        for row in rows:
            last = first + 1 + len(row.draft)
            verdicts.append(_walk(row.draft, tokens[first:last], trusted[first:last]))
            first = last
        return verdicts


def depths(draft: Draft) -> list[int]:
    """Distance of each node from the last fed token; parents come first in a draft."""
    found: list[int] = []
    for parent in draft.parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def _draw_at(row: WantedRow, depth: int) -> Draw | None:
    params = row.params
    if params.temperature == 0:
        return None
    return make_draw(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        choice=row.choice,
        position=row.position + depth,
    )


def _walk(draft: Draft, tokens: list[int], trusted: list[bool]) -> Verdict:
    """tokens[0] follows the last fed token, tokens[1 + i] follows node i."""
    accepted: list[int] = []
    node = -1
    while True:
        if not trusted[node + 1]:
            return Verdict(tokens=(), error="the model's logits are not finite")
        token = tokens[node + 1]
        child = next((i for i, p in enumerate(draft.parents) if p == node and draft.tokens[i] == token), None)
        if child is None:
            return Verdict(tokens=(*(draft.tokens[i] for i in accepted), token), accepted=tuple(accepted))
        accepted.append(child)
        node = child
