"""What one sequence's parameters and earlier tokens mean for its next token. Knows no batch, no drawing.

The order is vLLM's: allowed ids, bad words, min_tokens, grammar, bias, then the penalties. All of it comes before
temperature and filters, and so counts for greedy rows too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol

import numpy as np

from octavo_worker.engine.types import NO_TOKEN_ALLOWED, RuleBroken, RuleFault, SamplingParams, Token
from octavo_worker.verify import processors
from octavo_worker.verify.counts import TokenCounts


class Matcher(Protocol):
    """A grammar's state after some output."""

    def copy(self) -> Matcher:
        """The same state, on its own from now on."""
        ...

    def accept(self, token: Token) -> bool:
        """Move on by a token; False, and nothing has changed, when the grammar does not allow it."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        ...

    def mask(self) -> np.ndarray:
        """A bit for each token that may come next, bytes, lowest bit first; no end-of-sequence token is among them.

        Raises GrammarStuck when the grammar's limits are exhausted.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        ...


class Grammars(Protocol):
    """Where compiled grammars are found."""

    def get(self, key: str) -> Matcher:
        """A fresh state; raises KeyError when there is no such grammar."""
        ...


class GrammarStuck(RuleBroken):
    """A grammar cannot go on; the text says why."""

    code = "GRAMMAR_STUCK"


class TokenContext:
    """The state of one sequence. Told every known token in order; undoes some when a step is repeated."""

    def __init__(self, params: SamplingParams, *, num_prompt_tokens: int, matcher: Matcher | None = None) -> None:
        self._params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._matcher = matcher
        # Known tokens from position 0 on; empty when nothing depends on them.
        self._tokens: list[Token] = []
        self._all = TokenCounts() if params.repetition_penalty != 1.0 else None
        counts_output = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._output = TokenCounts() if counts_output else None
        self._allowed = np.array(sorted(params.allowed_token_ids), np.int64)
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self._bias = np.array([value for _, value in params.logit_bias], np.float32)
        self._stops = np.array(sorted(params.stop_token_ids), np.int64)

    def copy(self) -> TokenContext:
        """The same state for a sequence that forks off, on its own from now on. No token is looked at again."""
        twin = copy(self)
        twin._tokens = self._tokens.copy()
        twin._all = None if self._all is None else self._all.copy()
        twin._output = None if self._output is None else self._output.copy()
        twin._matcher = None if self._matcher is None else self._matcher.copy()
        return twin

    def know(self, start: int, tokens: Sequence[Token]) -> None:
        """Take the tokens at [start, start + len(tokens)). What was known from start on is forgotten first.

        Everything before start must be known. Raises GrammarStuck when the output breaks the grammar.
        """
        if not self._params.needs_history:
            return
        assert start <= len(self._tokens), "tokens are told in order"
        self._forget(len(self._tokens) - start)
        for token in tokens:
            if not self._push(token):
                raise GrammarStuck("the output so far does not follow the grammar")

    def process(self, logits_V: np.ndarray, position: int, path: Sequence[Token] = ()) -> str | None:
        """Change the logits of the token at ``position``, which follows the known tokens and those of a draft's path.

        Returns why no token can be chosen, None if one can. At a node that the grammar forbids nothing is changed.
        """
        num_pushed = 0
        try:
            for token in path if self._params.needs_history else ():
                if not self._push(token):
                    return None
                num_pushed += 1
            return self._change(logits_V, position - self._num_prompt_tokens)
        except GrammarStuck as error:
            return RuleFault(f"the grammar cannot go on: {error}", code=error.code)
        finally:
            self._forget(num_pushed)

    def _change(self, logits_V: np.ndarray, num_output: int) -> str | None:
        params, size = self._params, len(logits_V)
        if len(self._allowed):
            processors.allow_only(logits_V, self._allowed[self._allowed < size])
        if params.bad_words:
            first = max(self._num_prompt_tokens, len(self._tokens) + 1 - max(map(len, params.bad_words)))
            output = self._tokens[first:]
            processors.forbid(logits_V, [t for t in processors.completes(params.bad_words, output) if t < size])
        if self._matcher is not None:
            self._follow_grammar(logits_V, self._matcher)
        if num_output < params.min_tokens:
            processors.forbid(logits_V, self._stops[self._stops < size])
        if len(self._bias):
            inside = self._bias_ids < size
            logits_V[self._bias_ids[inside]] += self._bias[inside]
        if self._all is not None:
            ids, _ = self._all.present()
            processors.penalise_repetition(logits_V, ids, params.repetition_penalty)
        if self._output is not None:
            ids, counts = self._output.present()
            presence, frequency = params.presence_penalty, params.frequency_penalty
            processors.penalise_occurrences(logits_V, ids, counts, presence=presence, frequency=frequency)
        if np.isneginf(logits_V.max()):
            return self._why_nothing_is_allowed(num_output)
        return None

    def _follow_grammar(self, logits_V: np.ndarray, matcher: Matcher) -> None:
        """Stop tokens only where the output may end, whatever the grammar says of their texts."""
        stops = self._stops[self._stops < len(logits_V)]
        kept = logits_V[stops]
        processors.keep_bits(logits_V, matcher.mask())
        logits_V[stops] = kept if matcher.is_complete else -np.inf

    def _why_nothing_is_allowed(self, num_output: int) -> str:
        rules = {
            "allowed_token_ids": bool(len(self._allowed)),
            "bad_words": bool(self._params.bad_words),
            "min_tokens": num_output < self._params.min_tokens,
            "the grammar": self._matcher is not None,
            "logit_bias": bool(len(self._bias)),
        }
        names = ", ".join(name for name, holds in rules.items() if holds)
        return RuleFault(f"no token may follow: {names or 'the model'} leaves none", code=NO_TOKEN_ALLOWED)

    def _push(self, token: Token) -> bool:
        is_output = len(self._tokens) >= self._num_prompt_tokens
        if is_output and self._matcher is not None and not self._matcher.accept(token):
            return False
        self._tokens.append(token)
        if self._all is not None:
            self._all.add(token)
        if is_output and self._output is not None:
            self._output.add(token)
        return True

    def _forget(self, num_tokens: int) -> None:
        if not num_tokens:
            return
        num_output = min(num_tokens, max(0, len(self._tokens) - self._num_prompt_tokens))
        for token in self._tokens[len(self._tokens) - num_tokens :]:
            if self._all is not None:
                self._all.take_back(token)
        for token in self._tokens[len(self._tokens) - num_output :] if num_output else ():
            if self._output is not None:
                self._output.take_back(token)
        if self._matcher is not None and num_output:
            self._matcher.rollback(num_output)
        del self._tokens[len(self._tokens) - num_tokens :]


def needs_context(params: SamplingParams) -> bool:
    """Whether anything but the model, temperature and filters has a say."""
    is_static = bool(params.logit_bias or params.allowed_token_ids) or params.min_tokens > 0
    return is_static or params.needs_history
