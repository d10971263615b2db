"""Builds a generation request out of plain parameters. Pure; the values in it are the gateway's to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from octavo.errors import InvalidArgumentError
from octavo.fields import build, duration, put, wrong_value
from octavo.sampling import beam_search
from octavo.sampling import sampling as build_sampling
from octavo.structured import structured_output
from octavo.v1 import gateway_pb2

_SAMPLING_NAMES = frozenset(build_sampling.__kwdefaults__ or {})


def generation(
    prompt: str | None = None,
    *,
    messages: Sequence[Mapping[str, str]] | None = None,
    token_ids: Sequence[int] | None = None,
    model: str = "",
    priority: int = 0,
    timeout_s: float | None = None,
    idempotency_key: str = "",
    echo: bool = False,
    cache_salt: str = "",
    fair_key: str = "",
    n: int = 1,
    best_of: int | None = None,
    beam_width: int | None = None,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    json_schema: Mapping[str, Any] | str | None = None,
    json_object: bool = False,
    regex: str | None = None,
    choice: str | Sequence[str] | None = None,
    grammar: str | None = None,
    detach: bool = False,
    **sampling: Any,
) -> gateway_pb2.Generation:
    """Build the request. Values are the gateway's to judge; here only what has no form in the message is refused.

    ``n`` answers are generated, each in chunks of its own (``Chunk.choice``); of ``best_of`` the n with the best mean
    log-probability come at the end. ``beam_width`` searches instead of sampling; the n best come at the end, by their
    sum of log-probabilities / generated tokens ** ``length_penalty``; ``early_stopping`` is False, True or "never".
    The whole answer follows one of ``json_schema``, ``json_object``, ``regex``, ``choice`` and ``grammar`` (GBNF or
    Lark). What is not named here says how tokens are chosen: see ``octavo.sampling.sampling``.

    Raises InvalidArgumentError unless exactly one of prompt, messages and token_ids is given, and for values that
    do not fit the message's types.
    """
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise InvalidArgumentError("give exactly one of prompt, messages and token_ids", param="prompt")
    unknown = sampling.keys() - _SAMPLING_NAMES
    if unknown:
        raise TypeError(f"there is no parameter {min(unknown)!r}")
    built = build(
        gateway_pb2.Generation,
        model=model,
        priority=priority,
        idempotency_key=idempotency_key,
        on_disconnect=gateway_pb2.ON_DISCONNECT_DETACH if detach else gateway_pb2.ON_DISCONNECT_CANCEL,
        fair_key=fair_key,
        cache_salt=cache_salt,
        echo=echo,
        n=n,
        best_of=best_of,
    )
    _put_input(built, prompt, messages, token_ids)
    built.sampling.CopyFrom(build_sampling(**sampling))
    if beam_width is not None:
        search = beam_search(beam_width, length_penalty=length_penalty, early_stopping=early_stopping)
        built.beam_search.CopyFrom(search)
    structured = structured_output(
        json_schema=json_schema, json_object=json_object, regex=regex, choice=choice, grammar=grammar
    )
    if structured is not None:
        built.structured_output.CopyFrom(structured)
    if timeout_s is not None:
        built.timeout.CopyFrom(duration(timeout_s, "timeout_s"))
    return built


def _put_input(
    built: gateway_pb2.Generation,
    prompt: str | None,
    messages: Any,
    token_ids: Sequence[int] | None,
) -> None:
    """Set the one that is given."""
    if prompt is not None:
        put(built, "prompt", prompt)
    elif messages is not None:
        built.chat.SetInParent()
        if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
            wrong_value("messages", "a list of messages, each with role and content", messages)
        for number, message in enumerate(cast(Iterable[Any], messages)):
            built.chat.messages.append(_message(message, f"messages[{number}]"))
    else:
        put(built.tokens, "ids", token_ids, "token_ids")
        built.tokens.SetInParent()


def _message(message: Any, param: str) -> gateway_pb2.ChatMessage:
    if not isinstance(message, Mapping):
        wrong_value(param, "a mapping with role and content", message)
    given = cast(Mapping[str, Any], message)
    built = gateway_pb2.ChatMessage()
    for name in ("role", "content"):
        if given.get(name) is None:
            raise InvalidArgumentError(f"{param} has no {name}", param=f"{param}.{name}")
        put(built, name, given[name], f"{param}.{name}")
    return built
