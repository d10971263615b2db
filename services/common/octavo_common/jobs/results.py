"""What a generation brought: tokens, text, log-probabilities, usage. Pure values with a JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, cast

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What a generation used, whatever workers it lost. Times in seconds from acceptance; None: nobody knows."""

    prompt_tokens: int
    completion_tokens: int
    # These two are of the attempt that ended it.
    cached_tokens: int = 0
    num_preemptions: int = 0
    num_losses: int = 0
    numerics_changed: bool = False
    seed: int = 0
    # To the first step; when another worker had begun it, to when that took it.
    queue_s: float | None = None
    time_to_first_token_s: float | None = None
    # To the last token.
    total_s: float | None = None


class TokenLogprob(NamedTuple):
    """What is told of one token beside its id."""

    # None where nobody knows it: of the first token of a prompt, or of one that another attempt made.
    logprob: float | None
    # 1 is the likeliest token; 0 where logprob is None.
    rank: int = 0
    # The likeliest tokens and theirs, falling.
    top: tuple[tuple[int, float], ...] = ()
    # Character of the text at which the token's own begins.
    text_offset: int = 0

    @classmethod
    def from_json(cls, value: list[Any]) -> TokenLogprob:
        """Inverse of what JSON makes of the tuple."""
        logprob, rank, top, text_offset = value
        return cls(logprob, rank, tuple((token, theirs) for token, theirs in top), text_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceResult:
    """One of the answers to a request."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    # One a token when they were asked for.
    logprobs: tuple[TokenLogprob, ...] = ()
    # What ranked answers are in order of: of a beam its sum of log-probabilities with the length penalty, else their
    # mean.
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """What a generation brought (column `result`). The fields of an answer are those of the first."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    usage: UsageRecord
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    # One for each token of the prompt when they were asked for.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    # The answers after the first.
    others: tuple[ChoiceResult, ...] = ()

    @property
    def choices(self) -> tuple[ChoiceResult, ...]:
        """All answers, best first where they are ranked."""
        first = ChoiceResult(
            token_ids=self.token_ids,
            text=self.text,
            finish_reason=self.finish_reason,
            logprobs=self.logprobs,
            score=self.score,
        )
        return (first, *self.others)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what was not asked for is left out."""
        value = _choice_json(self.choices[0]) | {"usage": asdict(self.usage)}
        if self.prompt_logprobs:
            value["prompt_logprobs"] = [list(told) for told in self.prompt_logprobs]
        if self.others:
            value["others"] = [_choice_json(choice) for choice in self.others]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GenerationResult:
        """Inverse of to_json; unknown fields of a newer writer are ignored."""
        usage = {k: v for k, v in cast(dict[str, Any], value["usage"]).items() if k in UsageRecord.__slots__}
        return cls(
            **_choice_fields(value),
            usage=UsageRecord(**usage),
            prompt_logprobs=_logprobs(value.get("prompt_logprobs", ())),
            others=tuple(ChoiceResult(**_choice_fields(other)) for other in value.get("others", ())),
        )


def _choice_json(choice: ChoiceResult) -> dict[str, Any]:
    value: dict[str, Any] = {
        "token_ids": list(choice.token_ids),
        "text": choice.text,
        "finish_reason": choice.finish_reason,
    }
    if choice.logprobs:
        value["logprobs"] = [list(told) for told in choice.logprobs]
    if choice.score is not None:
        value["score"] = choice.score
    return value


def _choice_fields(value: dict[str, Any]) -> dict[str, Any]:
    return {
        "token_ids": tuple(value["token_ids"]),
        "text": value["text"],
        "finish_reason": value["finish_reason"],
        "logprobs": _logprobs(value.get("logprobs", ())),
        "score": value.get("score"),
    }


def _logprobs(values: Any) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob.from_json(value) for value in values)
