"""Beam search over the candidates of each step: which beams go on, which sequences are finished, when it ends.

Pure, and knows no blocks, no batch and no model: log-probabilities come in, tokens and their sums come out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo_worker.engine.types import BeamParams, FinishReason, Token, TokenLogprobs

Candidates = Sequence[tuple[Token, float]]
"""The most likely next tokens of one beam with their log-probabilities, best first."""


class Extension(NamedTuple):
    """A beam that goes on: which of the beams before it became it, and by which token."""

    parent: int
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A finished sequence."""

    tokens: tuple[Token, ...]
    # Sum of log-probabilities / (generated tokens ** length_penalty).
    score: float
    finish: FinishReason
    logprobs: tuple[TokenLogprobs, ...]


class _Node(NamedTuple):
    """A beam as the last of its tokens; the others hang on the parent, so that a fork copies nothing."""

    parent: _Node | None
    token: Token
    logprob: TokenLogprobs
    # Of log-probabilities up to here.
    total: float


_ROOT = _Node(parent=None, token=-1, logprob=TokenLogprobs(0.0, 0), total=0.0)


class BeamSearch:
    """One search. Feed it the candidates of all running beams, step by step, until it is done.

    A candidate ends a sequence by a stop token or by being the ``max_tokens``-th. Of each step's candidates, best
    first, those among the first ``width`` that end are finished; the first ``width`` that do not end go on. The rules
    for the end are those of `BeamParams.early_stopping`.
    """

    def __init__(
        self, params: BeamParams, *, max_tokens: int, stop_token_ids: frozenset[Token], num_logprobs: int = 0
    ) -> None:
        """``num_logprobs``: how many alternatives are kept for each token of a hypothesis."""
        self._params = params
        self._max_tokens = max_tokens
        self._stop_token_ids = stop_token_ids
        self._num_logprobs = num_logprobs
        self._num_generated = 0
        self._running: list[_Node] = [_ROOT]
        # Best first, at most ``width``.
        self._finished: list[Hypothesis] = []
        self._is_done = False

    @property
    def num_candidates(self) -> int:
        """Candidates that are needed of each beam: enough that ``width`` of them do not end."""
        return self._params.width + max(self._params.width, len(self._stop_token_ids))

    @property
    def is_done(self) -> bool:
        """No beam goes on."""
        return self._is_done

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """What is finished, best first."""
        return list(self._finished)

    def advance(self, candidates: Sequence[Candidates]) -> list[Extension]:
        """Take one step: candidates of each running beam, in the order in which they were returned.

        Returns the beams that go on, best first; none when the search is done.
        """
        assert not self._is_done, "a search that is done takes no step"
        assert len(candidates) == len(self._running), "each running beam has its candidates"
        self._num_generated += 1
        # Of equals the earlier beam, then the lower token.
        ranked = sorted(
            (-(node.total + logprob), parent, token, place)
            for parent, (node, found) in enumerate(zip(self._running, candidates, strict=True))
            for place, (token, logprob) in enumerate(found)
            if logprob > -math.inf
        )
        width, is_last = self._params.width, self._num_generated >= self._max_tokens
        before, self._running = self._running, []
        extensions: list[Extension] = []
        for index, (loss, parent, token, place) in enumerate(ranked):
            if index >= width and len(self._running) == width:
                break
            is_stop = token in self._stop_token_ids
            if (is_stop or is_last) and index >= width:
                continue
            node = self._node(before[parent], candidates[parent], place, -loss)
            if is_stop or is_last:
                self._finish(node, FinishReason.STOP if is_stop else FinishReason.LENGTH)
            elif len(self._running) < width:
                self._running.append(node)
                extensions.append(Extension(parent, token))
        if not ranked and not self._finished:
            # Every token is forbidden: what there is is all there will be.
            for node in before:
                self._finish(node, FinishReason.STOP)
        self._is_done = not self._can_improve()
        return [] if self._is_done else extensions

    def _node(self, parent: _Node, candidates: Candidates, place: int, total: float) -> _Node:
        token, logprob = candidates[place]
        told = TokenLogprobs(logprob, place + 1, tuple(candidates[: self._num_logprobs]))
        return _Node(parent, token, told, total)

    def _finish(self, node: _Node, finish: FinishReason) -> None:
        total, path = node.total, list[_Node]()
        while node.parent is not None:
            path.append(node)
            node = node.parent
        path.reverse()
        score = total / max(len(path), 1) ** self._params.length_penalty
        tokens = tuple(step.token for step in path)
        logprobs = tuple(step.logprob for step in path)
        self._finished.append(Hypothesis(tokens=tokens, score=score, finish=finish, logprobs=logprobs))
        # Stable: of equals the earlier one stays ahead.
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self._params.width :]

    def _can_improve(self) -> bool:
        if not self._running:
            return False
        if len(self._finished) < self._params.width:
            return True
        if self._params.early_stopping is True:
            return False
        penalty, num_tokens = self._params.length_penalty, self._num_generated
        if self._params.early_stopping is None and penalty > 0:
            # The longest sequence loses the least by its length.
            num_tokens = self._max_tokens
        return self._running[0].total / num_tokens**penalty > self._finished[-1].score
