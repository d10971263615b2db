"""Checks what a caller says about which tokens may come: penalties, biases, bans. Knows no model and no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_gateway.checks import (
    MAX_INT32,
    check_range,
    check_strings,
    check_token_ids,
    check_whole,
    refuse,
)
from octavo_gateway.requests import RawRequest, RequestLimits, Steering

# It divides logits or multiplies them: in float32 they must neither vanish nor overflow.
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
# OpenAI's bounds.
MAX_PENALTY = 2.0
MAX_BIAS = 100.0


def steering(raw: RawRequest, bounds: RequestLimits) -> Steering:
    """The valid form. Raises InvalidArgument with the field's name."""
    return Steering(
        min_p=0.0 if raw.min_p is None else check_range(raw.min_p, "min_p", 0.0, 1.0),
        repetition_penalty=_repetition_penalty(raw.repetition_penalty),
        presence_penalty=_penalty(raw.presence_penalty, "presence_penalty"),
        frequency_penalty=_penalty(raw.frequency_penalty, "frequency_penalty"),
        logit_bias=_logit_bias(raw.logit_bias, bounds),
        bad_words=check_strings(
            raw.bad_words,
            "bad_words",
            "bad word",
            max_strings=bounds.max_bad_words,
            max_chars=bounds.max_bad_word_chars,
        ),
        allowed_token_ids=tuple(
            sorted(set(check_token_ids(raw.allowed_token_ids, "allowed_token_ids", max_ids=bounds.max_allowed_tokens)))
        ),
        min_tokens=_min_tokens(raw),
    )


def _repetition_penalty(value: float | None) -> float:
    if value is None:
        return 1.0
    return check_range(value, "repetition_penalty", MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)


def _penalty(value: float | None, param: str) -> float:
    return 0.0 if value is None else check_range(value, param, -MAX_PENALTY, MAX_PENALTY)


def _logit_bias(values: Mapping[int, float] | None, bounds: RequestLimits) -> tuple[tuple[int, float], ...]:
    if values is None:
        return ()
    if not isinstance(values, Mapping):
        refuse("logit_bias must give a bias for each token id", "logit_bias")
    if len(values) > bounds.max_biased_tokens:
        refuse(f"at most {bounds.max_biased_tokens} tokens can be biased, and there are {len(values)}", "logit_bias")
    check_token_ids(list(values), "logit_bias")
    return tuple((token, check_range(values[token], "logit_bias", -MAX_BIAS, MAX_BIAS)) for token in sorted(values))


def _min_tokens(raw: RawRequest) -> int:
    number = check_whole(raw.min_tokens, "min_tokens", 0, MAX_INT32)
    # max_tokens has been found to be a number or nothing.
    if raw.max_tokens is not None and number > raw.max_tokens:
        refuse(f"min_tokens {number} is more than max_tokens {raw.max_tokens}", "min_tokens")
    return number
