"""Accepts a draft where it equals the target's own draws, so tokens are the same with and without drafts.

Serves greedy rows (temperature 0) and seeded ones alike: the noise of a position is fixed by the row's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from octavo_worker.engine.plan import Draft
from octavo_worker.engine.types import NO_TOKEN_ALLOWED, RuleFault, Token, TokenLogprobs
from octavo_worker.kernels.logits import LogitKernels
from octavo_worker.verify.base import ScoredToken, Verdict, WantedRow
from octavo_worker.verify.logprobs import Asked, Logprobs
from octavo_worker.verify.sampler import PLAIN, Draw, Sampler, make_draw

NOT_FINITE = "the model's logits are not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One wanted position: the end of a row's known tokens, or a node of its draft."""

    row: WantedRow
    # Absolute position of the token that is chosen here.
    position: int
    # Tokens of the draft from its root to this node.
    path: tuple[Token, ...] = ()


class Coupled:
    """The verifier of greedy and seeded requests."""

    def __init__(self) -> None:
        kernels = LogitKernels()
        self._sampler = Sampler(kernels)
        self._logprobs = Logprobs(kernels)

    def verify(self, rows: Sequence[WantedRow], logits_SV: Tensor) -> list[Verdict]:
        """Draw at every node, then walk from the root along nodes that equal the draws."""
        logits_SV = logits_SV.to("cpu", torch.float32).contiguous()
        nodes = [node for row in rows for node in nodes_of(row)]
        raw = _raw_rows(nodes, logits_SV)
        errors = _process(nodes, logits_SV)
        sources, draws = _draws(nodes)
        tokens, trusted = self._sampler.draw(logits_SV, sources, draws)
        found = [None if is_trusted else NOT_FINITE for is_trusted in trusted]
        verdicts: list[Verdict] = []
        asked: list[list[Asked]] = []
        first = first_node = 0
        for row in rows:
            last = first + max(1, len(row.choices)) + len(row.draft)
            whys = [errors.get(sources[i], found[i]) for i in range(first, last)]
            is_dead_end = bool(row.num_candidates) and _allows_none(whys[0])
            verdict = Verdict(candidates=()) if is_dead_end else _verdict(row, tokens[first:last], whys)
            if row.num_candidates and verdict.error is None and not is_dead_end:
                logits_V = logits_SV[first_node]
                best = self._logprobs.best(logits_V, row.num_candidates, raw.get(first_node, logits_V))
                verdict = replace(verdict, candidates=best)
            verdicts.append(verdict)
            asked.append(_questions(row, verdict, first_node))
            first, first_node = last, first_node + 1 + len(row.draft)
        return self._with_logprobs(verdicts, asked, logits_SV, raw)

    def score(self, tokens: Sequence[ScoredToken], logits_SV: Tensor) -> list[TokenLogprobs | None]:
        """The model's own log-probabilities of known tokens, one a row of logits."""
        logits_SV = logits_SV.to("cpu", torch.float32).contiguous()
        asked = [Asked(source=i, token=scored.token, num_top=scored.num_top) for i, scored in enumerate(tokens)]
        return self._logprobs.tell(logits_SV, asked)

    def _with_logprobs(
        self, verdicts: list[Verdict], asked: list[list[Asked]], logits_SV: Tensor, raw: dict[int, Tensor]
    ) -> list[Verdict]:
        """Answer the questions about the verdicts' tokens; the model's own logits may lie in ``raw``."""
        places = {source: place for place, source in enumerate(raw)}

        def is_moved(ask: Asked) -> bool:
            return not ask.is_processed and ask.source in places

        flat = [ask for asks in asked for ask in asks]
        here = iter(self._logprobs.tell(logits_SV, [ask for ask in flat if not is_moved(ask)]))
        moved = [replace(ask, source=places[ask.source]) for ask in flat if is_moved(ask)]
        there = iter(self._logprobs.tell(torch.stack(list(raw.values())), moved) if moved else ())
        found: list[Verdict] = []
        for verdict, asks in zip(verdicts, asked, strict=True):
            told = [next(there if is_moved(ask) else here) for ask in asks]
            # None are those of a row that has an error.
            kept = tuple(logprobs for logprobs in told if logprobs is not None)
            split = len(verdict.tokens)
            found.append(replace(verdict, logprobs=kept[:split], sibling_logprobs=kept[split:]) if asks else verdict)
        return found


def nodes_of(row: WantedRow) -> list[Node]:
    """A row's positions, in the order of its logits."""
    assert len(row.choices) == 1 or not row.draft.tokens, "a draft belongs to one choice"
    found = [Node(row=row, position=row.position)]
    for token, parent in zip(row.draft.tokens, row.draft.parents, strict=True):
        above = found[parent + 1]
        found.append(Node(row=row, position=above.position + 1, path=(*above.path, token)))
    return found


def _raw_rows(nodes: list[Node], logits_SV: Tensor) -> dict[int, Tensor]:
    """Copies of logits that are about to be changed and are asked for as they are."""
    found: dict[int, Tensor] = {}
    for index, node in enumerate(nodes):
        params = node.row.params
        tells_raw = params.num_logprobs is not None and not params.processed_logprobs
        if node.row.context is not None and (tells_raw or node.row.num_candidates):
            found[index] = logits_SV[index].clone()
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


def _draws(nodes: list[Node]) -> tuple[list[int], list[Draw]]:
    """Draws, and which logits each is from: several choices share those of their root."""
    sources: list[int] = []
    draws: list[Draw] = []
    for index, node in enumerate(nodes):
        for choice in node.row.choices or (0,):
            sources.append(index)
            draws.append(make_draw(node.row.params, choice=choice, position=node.position))
    return sources, draws


def _allows_none(error: str | None) -> bool:
    """A search has other beams to go on with; only this one ends."""
    return isinstance(error, RuleFault) and error.code == NO_TOKEN_ALLOWED


def _verdict(row: WantedRow, tokens: list[int], errors: list[str | None]) -> Verdict:
    if errors[0] is not None:
        return Verdict(error=errors[0])
    if not row.choices:
        return Verdict()
    if len(row.choices) > 1:
        return Verdict(tokens=(tokens[0],), siblings=tuple(tokens[1:]))
    return _walk(row.draft, tokens, errors)


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


def _questions(row: WantedRow, verdict: Verdict, first: int) -> list[Asked]:
    """What is to be told of a verdict's tokens and siblings, whose row's logits begin at ``first``."""
    params = row.params
    if params.num_logprobs is None:
        return []
    # A greedy row is told the probabilities before its choice, without temperature and filters.
    is_drawn = params.processed_logprobs and params.temperature > 0
    after = make_draw(params, choice=0, position=0) if is_drawn else PLAIN
    # Each token of a walk comes from the node before it.
    sources = [first, *(first + 1 + node for node in verdict.accepted)]
    pairs = [*zip(verdict.tokens, sources, strict=False), *((token, first) for token in verdict.siblings)]
    return [
        Asked(
            source=source,
            token=token,
            num_top=params.num_logprobs,
            is_processed=params.processed_logprobs,
            after=after,
        )
        for token, source in pairs
    ]
