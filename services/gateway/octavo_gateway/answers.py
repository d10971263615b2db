"""Checks how many answers a caller wants, how they are found, and what is told of them. Knows no model."""

from __future__ import annotations

from octavo_gateway.checks import check_flag, check_range, check_whole, refuse
from octavo_gateway.requests import Answers, Beam, RawRequest, RequestLimits

MODES = ("raw", "processed")
MAX_LENGTH_PENALTY = 10.0
# Numbers about tokens in one result: below the size of a message with room to spare.
MAX_TOLD = 1_000_000
# Beams are chosen by the model's own log-probabilities: these would be asked for in vain.
_NOT_WITH_BEAMS = {
    "top_k": (None, 0),
    "top_p": (None, 1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
}


def answers(raw: RawRequest, bounds: RequestLimits) -> Answers:
    """The valid form. Raises InvalidArgument with the field's name."""
    n = check_whole(raw.n, "n", 1, bounds.max_choices)
    if raw.logprobs_mode not in MODES:
        refuse(f"logprobs_mode must be one of {', '.join(MODES)}", "logprobs_mode")
    told = {
        "logprobs": _count(raw.logprobs, "logprobs", bounds),
        "prompt_logprobs": _count(raw.prompt_logprobs, "prompt_logprobs", bounds),
        "processed_logprobs": raw.logprobs_mode == "processed",
    }
    if raw.beam is not None:
        return Answers(n=n, best_of=n, **_beam(raw, raw.beam, n, bounds), **told)
    best_of = n if raw.best_of is None else check_whole(raw.best_of, "best_of", 1, bounds.max_choices)
    if best_of < n:
        refuse(f"best_of {best_of} is less than n {n}", "best_of")
    return Answers(n=n, best_of=best_of, **told)


def check_told(asked: Answers, *, num_prompt_tokens: int, max_tokens: int) -> None:
    """Refuse log-probabilities that no message could carry: each number of them takes about a dozen bytes.

    ``max_tokens``: what an answer can have at most, so cut to what the context leaves. What is told of the prompt goes
    out with each answer.
    """
    of_prompt = 0 if asked.prompt_logprobs is None else asked.n * num_prompt_tokens * (asked.prompt_logprobs + 2)
    of_answers = 0 if asked.logprobs is None else asked.n * max_tokens * (asked.logprobs + 2)
    if of_prompt + of_answers > MAX_TOLD:
        refuse(
            f"log-probabilities of so many tokens have up to {of_prompt + of_answers} numbers, and at most {MAX_TOLD} "
            "are told",
            "prompt_logprobs" if of_prompt > of_answers else "logprobs",
            hint="ask for fewer of the likeliest tokens, or set a smaller max_tokens",
            code="TOO_MUCH_TOLD",
        )


def _count(value: int | None, param: str, bounds: RequestLimits) -> int | None:
    return None if value is None else check_whole(value, param, 0, bounds.max_logprobs)


def _beam(raw: RawRequest, beam: Beam, n: int, bounds: RequestLimits) -> dict[str, int | float | bool | None]:
    for name, neutral in _NOT_WITH_BEAMS.items():
        if getattr(raw, name) not in neutral:
            refuse(f"{name} has no effect in a beam search", name, hint="leave it out, or sample instead")
    if raw.best_of is not None:
        refuse("best_of has no effect in a beam search", "best_of", hint="n says how many of the best are returned")
    width = check_whole(beam.width, "beam_width", 1, bounds.max_choices)
    if width < n:
        refuse(f"a beam search of width {width} has no {n} answers", "n", hint="n is at most beam_width")
    stopping = beam.early_stopping
    return {
        "beam_width": width,
        "length_penalty": check_range(beam.length_penalty, "length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
        "early_stopping": None if stopping is None else check_flag(stopping, "early_stopping"),
    }
