"""Turns what a caller wrote into a ValidRequest, or says what is wrong with it and where.

Parse, then trust: nothing below checks these again. Both rims (gRPC and HTTP) fill a RawRequest and call `validate`.
Knows neither protobuf nor HTTP, and no model: what depends on the model's card is checked in `prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo_gateway.answers import answers
from octavo_gateway.checks import (
    MAX_INT32,
    check_flag,
    check_name,
    check_range,
    check_real,
    check_strings,
    check_text,
    check_token_ids,
    check_whole,
    refuse,
)
from octavo_gateway.requests import (
    ChatPrompt,
    Message,
    Prompt,
    RawRequest,
    RequestLimits,
    TextPrompt,
    TokenPrompt,
    ValidRequest,
)
from octavo_gateway.steering import steering
from octavo_gateway.structured import PARAM as STRUCTURED
from octavo_gateway.structured import grammar

ROLES = ("system", "user", "assistant", "tool", "developer")
# OpenAI allows 2. Much more, and what divides the logits would be 0 in float32.
MAX_TEMPERATURE = 100.0
# Below, the best token is taken, as vLLM does: a logit divided by less could be infinite.
MIN_TEMPERATURE = 1e-5


def validate(raw: RawRequest, limits: RequestLimits | None = None) -> ValidRequest:
    """Check a request as far as that is possible without its model. Raises InvalidArgument with the field's name."""
    bounds = limits or RequestLimits()
    echo = check_flag(raw.echo, "echo")
    return ValidRequest(
        model=check_name(raw.model, "model", bounds.max_name_chars),
        prompt=_prompt(raw, bounds),
        temperature=_temperature(raw.temperature),
        top_k=_top_k(raw.top_k),
        top_p=_top_p(raw.top_p),
        seed=None if raw.seed is None else check_whole(raw.seed, "seed", -(2**63), 2**63 - 1),
        max_tokens=_max_tokens(raw.max_tokens, echo=echo),
        stop=check_strings(
            raw.stop, "stop", "stop string", max_strings=bounds.max_stop, max_chars=bounds.max_stop_chars
        ),
        stop_token_ids=_stop_token_ids(raw.stop_token_ids, bounds),
        ignore_eos=_ignore_eos(raw),
        steering=steering(raw, bounds),
        include_stop=check_flag(raw.include_stop, "include_stop"),
        answers=answers(raw, bounds),
        grammar=grammar(raw.structured, bounds),
        priority=check_whole(raw.priority, "priority", -bounds.max_priority, bounds.max_priority),
        timeout_s=_timeout(raw.timeout_s, bounds),
        idempotency_key=check_name(raw.idempotency_key, "idempotency_key", bounds.max_name_chars) or None,
        on_disconnect=raw.on_disconnect,
        fair_key=check_name(raw.fair_key, "fair_key", bounds.max_name_chars) or None,
        cache_salt=check_name(raw.cache_salt, "cache_salt", bounds.max_name_chars),
        echo=echo,
    )


def _prompt(raw: RawRequest, bounds: RequestLimits) -> Prompt:
    given = [name for name in ("prompt", "messages", "token_ids") if getattr(raw, name) is not None]
    if not given:
        refuse("the request has no prompt", "prompt", hint="give a prompt, messages or token ids", code="EMPTY_PROMPT")
    if len(given) > 1:
        refuse(f"{' and '.join(given)} were both given", given[1], hint="give exactly one of them")
    if raw.prompt is not None:
        text = check_text(raw.prompt, "prompt")
        _check_size(len(text), "prompt", bounds)
        if not text:
            refuse("the prompt is empty", "prompt", code="EMPTY_PROMPT")
        return TextPrompt(text=text)
    if raw.messages is not None:
        return _chat(raw.messages, bounds)
    given_ids = raw.token_ids if raw.token_ids is not None else ()
    ids = check_token_ids(given_ids, "token_ids", max_ids=bounds.max_prompt_chars)
    if not ids:
        refuse("the prompt has no tokens", "token_ids", code="EMPTY_PROMPT")
    return TokenPrompt(ids=ids)


def _chat(messages: Sequence[Message], bounds: RequestLimits) -> ChatPrompt:
    if not messages:
        refuse("the conversation has no messages", "messages", code="EMPTY_PROMPT")
    if len(messages) > bounds.max_messages:
        refuse(f"at most {bounds.max_messages} messages are taken, and there are {len(messages)}", "messages")
    num_chars = 0
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            role = check_text(message.role, f"messages[{index}].role")[:64]
            refuse(f"{role!r} is no role", f"messages[{index}].role", hint=f"roles are {', '.join(ROLES)}")
        num_chars += len(check_text(message.content, f"messages[{index}].content"))
    _check_size(num_chars, "messages", bounds)
    return ChatPrompt(messages=tuple(messages))


def _check_size(size: int, param: str, bounds: RequestLimits) -> None:
    if size > bounds.max_prompt_chars:
        refuse(
            f"the prompt has {size} characters, and at most {bounds.max_prompt_chars} are taken",
            param,
            hint="shorten the prompt",
            code="PROMPT_TOO_LARGE",
        )


def _top_k(value: int | None) -> int:
    """0 keeps all; so does -1, as vLLM's clients say it."""
    if value is None or value == -1:
        return 0
    return check_whole(value, "top_k", 0, MAX_INT32)


def _temperature(value: float | None) -> float:
    if value is None:
        return 1.0
    number = check_range(value, "temperature", 0.0, MAX_TEMPERATURE)
    return number if number >= MIN_TEMPERATURE else 0.0


def _top_p(value: float | None) -> float:
    if value is None:
        return 1.0
    number = check_real(value, "top_p")
    if not 0 < number <= 1:
        refuse(f"top_p must be above 0 and at most 1, not {number}", "top_p")
    return number


def _max_tokens(value: int | None, *, echo: bool) -> int | None:
    if value is None:
        return None
    if value == 0 and not echo:
        refuse("max_tokens 0 asks for nothing", "max_tokens", hint="max_tokens 0 is taken together with echo only")
    return check_whole(value, "max_tokens", 0, MAX_INT32)


def _stop_token_ids(values: Sequence[int], bounds: RequestLimits) -> tuple[int, ...]:
    return tuple(dict.fromkeys(check_token_ids(values, "stop_token_ids", max_ids=bounds.max_stop_tokens)))


def _ignore_eos(raw: RawRequest) -> bool:
    ignored = check_flag(raw.ignore_eos, "ignore_eos")
    if ignored and raw.structured:
        refuse(
            "an answer that follows a structure ends with it, so ignore_eos has no meaning",
            "ignore_eos",
            hint=f"leave out ignore_eos or {STRUCTURED}",
        )
    return ignored


def _timeout(value: float | None, bounds: RequestLimits) -> float | None:
    if value is None:
        return None
    number = check_real(value, "timeout")
    if number <= 0:
        refuse(f"timeout must be above 0 seconds, not {number}", "timeout")
    return min(number, bounds.max_timeout_s)
