"""One answer of a job at this worker: its tokens, its text, how it ended. Decides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from octavo_common.jobs.spec import FinishReason, TokenLogprob
from octavo_common.text.stream import Released, TextStream
from octavo_worker.engine.types import TokenLogprobs

# JSON has no infinity; OpenAI's word for what could not come.
LEAST_LOGPROB = -9999.0
UNKNOWN = TokenLogprob(None)


@dataclass(slots=True, eq=False, kw_only=True)
class Choice:
    """The state of one answer."""

    stream: TextStream
    # Something is told of each token.
    telling: bool = False
    # All tokens, those that are not certain yet among them.
    ids: list[int] = field(default_factory=list[int])
    # One a token when telling, else none.
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    # Set when it has ended.
    reason: FinishReason | None = None
    # The engine computes no more of it.
    computed: bool = False
    # What ranked answers are in order of.
    score: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that are certain: all that it keeps, once it has ended."""
        return self.stream.num_released

    @property
    def mean_logprob(self) -> float:
        """Of the tokens it keeps; 0 without any."""
        kept = [told.logprob for told in self.logprobs[: self.num_tokens] if told.logprob is not None]
        return sum(kept) / len(kept) if kept else 0.0

    def replay(self, ids: Sequence[int]) -> Released:
        """Take the tokens of earlier attempts; what was told of them went with their stream."""
        self.ids += ids
        if self.telling:
            self.logprobs += [UNKNOWN] * len(ids)
        return self.stream.replay(ids)

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Released:
        """Take new tokens."""
        self.ids += ids
        if self.telling:
            self.logprobs += map(told, logprobs)
            # The engine has nothing to tell of tokens that it did not choose.
            self.logprobs += [UNKNOWN] * (len(self.ids) - len(self.logprobs))
        return self.stream.push(ids)

    def tokens(self, first: int, released: Released) -> tuple[list[int], Sequence[str], list[TokenLogprob]]:
        """Tokens that were released after the first ones, with their texts and what is told of them."""
        end = first + released.num_released
        return self.ids[first:end], released.texts, self.logprobs[first:end]


def told(value: TokenLogprobs) -> TokenLogprob:
    """What the engine tells, in a form that JSON has."""
    return TokenLogprob(
        _finite(value.logprob), value.rank, tuple((token, _finite(logprob)) for token, logprob in value.top)
    )


def with_offsets(logprobs: Sequence[TokenLogprob], texts: Sequence[str], first: int) -> tuple[TokenLogprob, ...]:
    """What is told of tokens, with the characters at which their texts begin."""
    offsets = accumulate(map(len, texts), initial=first)
    return tuple(one._replace(text_offset=offset) for one, offset in zip(logprobs, offsets, strict=False))


def _finite(logprob: float) -> float:
    if math.isnan(logprob):
        return LEAST_LOGPROB
    # Six digits are more than float32 has to say.
    return round(min(max(logprob, LEAST_LOGPROB), 0.0), 6)
