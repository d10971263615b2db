"""Builds a generation request out of plain parameters. Pure; the values in it are the gateway's to judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from octavo.errors import InvalidArgumentError
from octavo.fields import build, duration, put, wrong
from octavo.sampling import beam_search, choosing, steering, telling
from octavo.structured import structured_output
from octavo.v1 import common_pb2, gateway_pb2

# Each has parameters of its own.
_SAMPLING = (choosing, steering, telling)
PARTS = (*_SAMPLING, beam_search, structured_output)
_NAMES = frozenset(name for part in PARTS for name in part.__kwdefaults__ or {})


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
    detach: bool = False,
    **more: Any,
) -> gateway_pb2.Generation:
    """Build the request. Values are the gateway's to judge; here only what has no form in the message is refused.

    ``n`` answers are generated, each in chunks of its own (``Chunk.choice``); of ``best_of`` the n with the best mean
    log-probability come at the end. How tokens are chosen and what is told of them is said by the parameters of
    ``octavo.sampling`` (``choosing``, ``steering``, ``telling``, ``beam_search``), and what the answer follows by those
    of ``octavo.structured.structured_output``.

    Raises InvalidArgumentError with the parameter's name unless exactly one of prompt, messages and token_ids is given,
    and for values that do not fit the message's types; TypeError for a parameter that there is not.
    """
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise InvalidArgumentError("give exactly one of prompt, messages and token_ids", param="prompt")
    unknown = more.keys() - _NAMES
    if unknown:
        raise TypeError(f"there is no parameter {min(unknown)!r}")
    built = build(
        gateway_pb2.Generation,
        model=model,
        priority=priority,
        timeout=None if timeout_s is None else duration(timeout_s, "timeout_s"),
        idempotency_key=idempotency_key,
        on_disconnect=gateway_pb2.ON_DISCONNECT_DETACH if detach else gateway_pb2.ON_DISCONNECT_CANCEL,
        fair_key=fair_key,
        cache_salt=cache_salt,
        echo=echo,
        n=n,
        best_of=best_of,
        sampling=_sampling(more),
        beam_search=beam_search(**_own(more, beam_search)),
        structured_output=structured_output(**_own(more, structured_output)),
    )
    _put_input(built, prompt, messages, token_ids)
    return built


def _sampling(given: Mapping[str, Any]) -> common_pb2.Sampling:
    whole = common_pb2.Sampling()
    for part in _SAMPLING:
        whole.MergeFrom(part(**_own(given, part)))
    return whole


def _own(given: Mapping[str, Any], part: Any) -> dict[str, Any]:
    """What was given of a part's parameters."""
    return {name: given[name] for name in part.__kwdefaults__ if name in given}


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
            raise wrong("messages", "a list of messages, each with role and content", messages)
        for number, message in enumerate(cast(Iterable[Any], messages)):
            built.chat.messages.append(_message(message, f"messages[{number}]"))
    else:
        put(built.tokens, "ids", token_ids, "token_ids")
        built.tokens.SetInParent()


def _message(message: Any, param: str) -> gateway_pb2.ChatMessage:
    if not isinstance(message, Mapping):
        raise wrong(param, "a mapping with role and content", message)
    given = cast(Mapping[str, Any], message)
    built = gateway_pb2.ChatMessage()
    for name in ("role", "content"):
        if given.get(name) is None:
            raise InvalidArgumentError(f"{param} has no {name}", param=f"{param}.{name}")
        put(built, name, given[name], f"{param}.{name}")
    return built
