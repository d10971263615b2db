"""Accepts a draft where it equals the target's own draws, so tokens are the same with and without drafts.

Serves greedy rows (temperature 0) and seeded ones alike: the noise of a position is fixed by the row's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo_worker.engine.plan import Draft
from octavo_worker.engine.types import Token
from octavo_worker.verify.base import Verdict, WantedRow
from octavo_worker.verify.logprobs import most_likely
from octavo_worker.verify.sampler import Draw, draw_tokens, make_draw

NOT_FINITE = "the model's logits are not finite"


class Coupled:
    """The verifier of greedy and seeded requests."""

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """Draw at every node, then walk from the root along nodes that equal the draws."""
        nodes = [node for row in rows for node in nodes_of(row)]
        errors = _process(nodes, logits_SV)
        draws: list[Draw | None] = []
        # Which logits each draw is from: several choices share those of their root.
        sources: list[int] = []
        for index, node in enumerate(nodes):
            for choice in node.row.choices or (0,):
                draws.append(_draw_at(node, choice))
                sources.append(index)
        wanted_SV = logits_SV if len(sources) == len(nodes) else logits_SV[sources]
        tokens, trusted = draw_tokens(wanted_SV, draws)
        found = [None if is_trusted else NOT_FINITE for is_trusted in trusted]
        verdicts: list[Verdict] = []
        first = 0
        for row in rows:
            last = first + max(1, len(row.choices)) + len(row.draft)
            whys = [errors.get(sources[i], found[i]) for i in range(first, last)]
            verdicts.append(_verdict(row, wanted_SV[first], tokens[first:last], whys))
            first = last
        return verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One wanted position: the end of a row's known tokens, or a node of its draft."""

    row: WantedRow
    # Absolute position of the token that is chosen here.
    position: int
    # Tokens of the draft from its root to this node.
    path: tuple[Token, ...] = ()


def nodes_of(row: WantedRow) -> list[Node]:
    """A row's positions, in the order of its logits."""
    assert len(row.choices) == 1 or not row.draft.tokens, "a draft belongs to one choice"
    found = [Node(row=row, position=row.position)]
    for token, parent in zip(row.draft.tokens, row.draft.parents, strict=True):
        above = found[parent + 1]
        found.append(Node(row=row, position=above.position + 1, path=(*above.path, token)))
    return found


def _process(nodes: list[Node], logits_SV: Tensor) -> dict[int, str]:
    """Apply what rows say beside the model, in place; returns errors by index of their logits."""
    errors: dict[int, str] = {}
    for index, node in enumerate(nodes):
        if node.row.context is not None:
            logits_V = logits_SV[index].numpy()
            if not np.isfinite(logits_V.max()):
                errors[index] = NOT_FINITE
            elif error := node.row.context.process(logits_V, node.position, node.path):
                errors[index] = error
    return errors


def _verdict(row: WantedRow, logits_V: Tensor, tokens: list[int], errors: list[str | None]) -> Verdict:
    if errors[0] is not None:
        return Verdict(error=errors[0])
    if row.num_candidates:
        return Verdict(candidates=most_likely(logits_V.numpy(), row.num_candidates))
    if not row.choices:
        return Verdict()
    if len(row.choices) > 1:
        return Verdict(tokens=(tokens[0],), siblings=tuple(tokens[1:]))
    return _walk(row.draft, tokens, errors)


def _draw_at(node: Node, choice: int) -> Draw | None:
    params = node.row.params
    if params.temperature == 0 or not node.row.choices:
        return None
    return make_draw(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        seed=params.seed,
        choice=choice,
        position=node.position,
    )


def _walk(draft: Draft, tokens: list[int], errors: list[str | None]) -> Verdict:
    """tokens[0] follows the last fed token, tokens[1 + i] follows node i."""
    accepted: list[int] = []
    node = -1
    while True:
        if errors[node + 1] is not None:
            return Verdict(error=errors[node + 1])
        token = tokens[node + 1]
        child = next((i for i, p in enumerate(draft.parents) if p == node and draft.tokens[i] == token), None)
        if child is None:
            return Verdict(tokens=(*(draft.tokens[i] for i in accepted), token), accepted=tuple(accepted))
        accepted.append(child)
        node = child
