"""Turns what a caller wrote into a ValidRequest, or says what is wrong with it and where.

Parse, then trust: nothing below checks these again. Both rims (gRPC and HTTP) fill a RawRequest and call `validate`.
Knows neither protobuf nor HTTP, and no model: what depends on the model's card is checked in `prompts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from octavo_common.errors import InvalidArgument
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

ROLES = ("system", "user", "assistant", "tool", "developer")
MAX_INT32 = 2**31 - 1
MAX_TOKEN_IDS = 1_000_000


def validate(raw: RawRequest, limits: RequestLimits | None = None) -> ValidRequest:
    """Check a request as far as that is possible without its model. Raises InvalidArgument with the field's name."""
    bounds = limits or RequestLimits()
    echo = _flag(raw.echo, "echo")
    return ValidRequest(
        model=_name(raw.model, "model", bounds.max_name_chars),
        prompt=_prompt(raw, bounds),
        temperature=_temperature(raw.temperature),
        top_k=0 if raw.top_k is None else _whole(raw.top_k, "top_k", 0, MAX_INT32),
        top_p=_top_p(raw.top_p),
        seed=None if raw.seed is None else _whole(raw.seed, "seed", -(2**63), 2**63 - 1),
        max_tokens=_max_tokens(raw.max_tokens, echo=echo),
        stop=_stop(raw.stop, bounds),
        stop_token_ids=_stop_token_ids(raw.stop_token_ids, bounds),
        ignore_eos=_flag(raw.ignore_eos, "ignore_eos"),
        priority=_whole(raw.priority, "priority", -bounds.max_priority, bounds.max_priority),
        timeout_s=_timeout(raw.timeout_s, bounds),
        idempotency_key=_name(raw.idempotency_key, "idempotency_key", bounds.max_name_chars) or None,
        on_disconnect=raw.on_disconnect,
        fair_key=_name(raw.fair_key, "fair_key", bounds.max_name_chars) or None,
        cache_salt=_name(raw.cache_salt, "cache_salt", bounds.max_name_chars),
        echo=echo,
    )


def check_token_ids(ids: Sequence[int], param: str, *, max_ids: int = MAX_TOKEN_IDS) -> tuple[int, ...]:
    """Ids as a tuple; raises InvalidArgument if one is no int32 >= 0, or if there are too many."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
        _refuse(f"{param} must be a list of token ids", param)
    if len(ids) > max_ids:
        _refuse(f"{param} has {len(ids)} ids, and at most {max_ids} are taken", param, code="PROMPT_TOO_LARGE")
    # By built-ins: a loop over a million ids would hold up every stream.
    if set(map(type, ids)) - {int}:
        _refuse(f"{param} holds something that is no whole number", param)
    if ids and (min(ids) < 0 or max(ids) > MAX_INT32):
        _refuse(f"token ids must be from 0 to {MAX_INT32}", param)
    return tuple(ids)


def _refuse(message: str, param: str, *, hint: str = "", code: str | None = None) -> NoReturn:
    raise InvalidArgument(message, param=param, hint=hint, code=code)


def _prompt(raw: RawRequest, bounds: RequestLimits) -> Prompt:
    given = [name for name in ("prompt", "messages", "token_ids") if getattr(raw, name) is not None]
    if not given:
        _refuse("the request has no prompt", "prompt", hint="give a prompt, messages or token ids", code="EMPTY_PROMPT")
    if len(given) > 1:
        _refuse(f"{' and '.join(given)} were both given", given[1], hint="give exactly one of them")
    if raw.prompt is not None:
        text = _text(raw.prompt, "prompt")
        _check_size(len(text), "prompt", bounds)
        if not text:
            _refuse("the prompt is empty", "prompt", code="EMPTY_PROMPT")
        return TextPrompt(text=text)
    if raw.messages is not None:
        return _chat(raw.messages, bounds)
    given_ids = raw.token_ids if raw.token_ids is not None else ()
    ids = check_token_ids(given_ids, "token_ids", max_ids=bounds.max_prompt_chars)
    if not ids:
        _refuse("the prompt has no tokens", "token_ids", code="EMPTY_PROMPT")
    return TokenPrompt(ids=ids)


def _chat(messages: Sequence[Message], bounds: RequestLimits) -> ChatPrompt:
    if not messages:
        _refuse("the conversation has no messages", "messages", code="EMPTY_PROMPT")
    if len(messages) > bounds.max_messages:
        _refuse(f"at most {bounds.max_messages} messages are taken, and there are {len(messages)}", "messages")
    num_chars = 0
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            role = _text(message.role, f"messages[{index}].role")[:64]
            _refuse(f"{role!r} is no role", f"messages[{index}].role", hint=f"roles are {', '.join(ROLES)}")
        num_chars += len(_text(message.content, f"messages[{index}].content"))
    _check_size(num_chars, "messages", bounds)
    return ChatPrompt(messages=tuple(messages))


def _check_size(size: int, param: str, bounds: RequestLimits) -> None:
    if size > bounds.max_prompt_chars:
        _refuse(
            f"the prompt has {size} characters, and at most {bounds.max_prompt_chars} are taken",
            param,
            hint="shorten the prompt",
            code="PROMPT_TOO_LARGE",
        )


def _temperature(value: float | None) -> float:
    if value is None:
        return 1.0
    number = _real(value, "temperature")
    if number < 0:
        _refuse(f"temperature must be at least 0, not {number}", "temperature")
    return number


def _top_p(value: float | None) -> float:
    if value is None:
        return 1.0
    number = _real(value, "top_p")
    if not 0 < number <= 1:
        _refuse(f"top_p must be above 0 and at most 1, not {number}", "top_p")
    return number


def _max_tokens(value: int | None, *, echo: bool) -> int | None:
    if value is None:
        return None
    if value == 0 and not echo:
        _refuse("max_tokens 0 asks for nothing", "max_tokens", hint="max_tokens 0 is taken together with echo only")
    return _whole(value, "max_tokens", 0, MAX_INT32)


def _stop(values: Sequence[str], bounds: RequestLimits) -> tuple[str, ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        _refuse("stop must be a list of strings", "stop")
    if len(values) > bounds.max_stop:
        _refuse(f"at most {bounds.max_stop} stop strings are taken, and there are {len(values)}", "stop")
    for value in values:
        text = _text(value, "stop")
        if not text:
            _refuse("a stop string is empty", "stop")
        if len(text) > bounds.max_stop_chars:
            _refuse(f"a stop string has {len(text)} characters, and at most {bounds.max_stop_chars} are taken", "stop")
        # The row is JSON in Postgres, which has no NUL.
        if "\0" in text:
            _refuse("a stop string holds a NUL character", "stop")
    return tuple(values)


def _stop_token_ids(values: Sequence[int], bounds: RequestLimits) -> tuple[int, ...]:
    return tuple(dict.fromkeys(check_token_ids(values, "stop_token_ids", max_ids=bounds.max_stop_tokens)))


def _timeout(value: float | None, bounds: RequestLimits) -> float | None:
    if value is None:
        return None
    number = _real(value, "timeout")
    if number <= 0:
        _refuse(f"timeout must be above 0 seconds, not {number}", "timeout")
    return min(number, bounds.max_timeout_s)


def _name(value: str, param: str, max_chars: int) -> str:
    text = _text(value, param)
    if len(text) > max_chars:
        _refuse(f"{param} has {len(text)} characters, and at most {max_chars} are taken", param)
    if "\0" in text:
        _refuse(f"{param} holds a NUL character", param)
    return text


def _text(value: str, param: str) -> str:
    if not isinstance(value, str):
        _refuse(f"{param} must be text, not {type(value).__name__}", param)
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(f"{param} holds a lone surrogate: it is no valid Unicode text", param)
    return value


def _flag(value: bool, param: str) -> bool:
    if not isinstance(value, bool):
        _refuse(f"{param} must be true or false", param)
    return value


def _whole(value: int, param: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(f"{param} must be a whole number", param)
    if not low <= value <= high:
        _refuse(f"{param} must be from {low} to {high}, not {value if abs(value) < 2**64 else 'this large'}", param)
    return value


def _real(value: float, param: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(f"{param} must be a number", param)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse(f"{param} must be a finite number", param)
    return number
