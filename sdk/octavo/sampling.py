"""Builds the parts of a request that say how tokens are chosen. Pure; the values in it are the gateway's to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.fields import build, wrong
from octavo.v1 import common_pb2, gateway_pb2

_MODES = {"raw": common_pb2.LOGPROBS_MODE_RAW, "processed": common_pb2.LOGPROBS_MODE_PROCESSED}
_STOPPING = {
    False: gateway_pb2.EARLY_STOPPING_HEURISTIC,
    True: gateway_pb2.EARLY_STOPPING_ALWAYS,
    "never": gateway_pb2.EARLY_STOPPING_NEVER,
}


def choosing(
    *,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    include_stop: bool = False,
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    min_tokens: int = 0,
) -> common_pb2.Sampling:
    """Say how tokens are drawn and what ends the answer; None leaves a value to the platform's default.

    ``min_p`` drops tokens below this part of the likeliest one's probability. Before ``min_tokens`` nothing ends the
    answer; with ``include_stop`` it keeps the stop string that ended it.
    """
    return build(
        common_pb2.Sampling,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        # A string is one stop, not its letters.
        stop=[stop] if isinstance(stop, str) else stop,
        include_stop=include_stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        min_tokens=min_tokens,
    )


def steering(
    *,
    repetition_penalty: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    bad_words: str | Sequence[str] = (),
    allowed_token_ids: Sequence[int] = (),
) -> common_pb2.Sampling:
    """Say which tokens are preferred and which may come.

    ``repetition_penalty`` divides the logits of tokens of prompt and answer (1 changes nothing), ``presence_penalty``
    and ``frequency_penalty`` are taken from those of the answer, once and for each occurrence. ``logit_bias`` adds to
    single tokens' logits. ``bad_words`` never come; ``allowed_token_ids``, if given, are the only ones that may.
    """
    return build(
        common_pb2.Sampling,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        # A string is one word, not its letters.
        bad_words=[bad_words] if isinstance(bad_words, str) else bad_words,
        allowed_token_ids=allowed_token_ids,
    )


def telling(
    *, logprobs: int | None = None, prompt_logprobs: int | None = None, logprobs_mode: str = "raw"
) -> common_pb2.Sampling:
    """Say what is told of tokens.

    Each token's log-probability and those of so many of the likeliest in its place, of the answer and of the prompt;
    ``logprobs_mode`` is "raw" or "processed" (after penalties, temperature and filters).
    """
    return build(
        common_pb2.Sampling,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logprobs_mode=_named(_MODES, logprobs_mode, "logprobs_mode"),
    )


def beam_search(
    *, beam_width: int | None = None, length_penalty: float = 1.0, early_stopping: bool | str = False
) -> gateway_pb2.BeamSearch | None:
    """Search instead of sampling; None without a ``beam_width``.

    The n best come at the end, by their sum of log-probabilities / generated tokens ** ``length_penalty``;
    ``early_stopping`` is False, True or "never".
    """
    search = build(
        gateway_pb2.BeamSearch,
        {"width": "beam_width"},
        width=beam_width,
        length_penalty=length_penalty,
        early_stopping=_named(_STOPPING, early_stopping, "early_stopping"),
    )
    return None if beam_width is None else search


def _named(values: Mapping[Any, Any], value: Any, param: str) -> Any:
    if not isinstance(value, str | bool) or value not in values:
        raise wrong(param, f"one of {', '.join(repr(name) for name in values)}", value)
    return values[value]
