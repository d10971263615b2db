"""Builds a generation request out of plain parameters. Pure; the values in it are the gateway's to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf.duration_pb2 import Duration

from octavo.errors import InvalidArgumentError
from octavo.v1 import gateway_pb2


def generation(
    prompt: str | None = None,
    *,
    messages: Sequence[Mapping[str, str]] | None = None,
    token_ids: Sequence[int] | None = None,
    model: str = "",
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    priority: int = 0,
    timeout_s: float | None = None,
    idempotency_key: str = "",
    echo: bool = False,
    cache_salt: str = "",
    fair_key: str = "",
    detach: bool = False,
) -> gateway_pb2.Generation:
    """Build the request. Values are the gateway's to judge; here only what has no form in the message is refused.

    Raises InvalidArgumentError unless exactly one of prompt, messages and token_ids is given, and for values that
    do not fit the message's types.
    """
    if sum(given is not None for given in (prompt, messages, token_ids)) != 1:
        raise InvalidArgumentError("give exactly one of prompt, messages and token_ids", param="prompt")
    disconnect = gateway_pb2.ON_DISCONNECT_DETACH if detach else gateway_pb2.ON_DISCONNECT_CANCEL
    try:
        built = gateway_pb2.Generation(
            model=model,
            priority=priority,
            idempotency_key=idempotency_key,
            on_disconnect=disconnect,
            fair_key=fair_key,
            cache_salt=cache_salt,
            echo=echo,
        )
        if prompt is not None:
            built.prompt = prompt
        elif messages is not None:
            built.chat.SetInParent()
            built.chat.messages.extend(
                gateway_pb2.ChatMessage(role=message["role"], content=message["content"]) for message in messages
            )
        else:
            built.tokens.ids.extend(token_ids or ())
            built.tokens.SetInParent()
        sampling = built.sampling
        for name, value in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("seed", seed)):
            if value is not None:
                setattr(sampling, name, value)
        if max_tokens is not None:
            sampling.max_tokens = max_tokens
        sampling.stop.extend([stop] if isinstance(stop, str) else stop)
        sampling.stop_token_ids.extend(stop_token_ids)
        sampling.ignore_eos = ignore_eos
        if timeout_s is not None:
            built.timeout.CopyFrom(_duration(timeout_s))
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(f"the request has no form in the protocol: {error}") from error
    except KeyError as error:
        raise InvalidArgumentError(f"a chat message lacks {error}", param="messages") from error
    return built


def _duration(seconds: float) -> Duration:
    nanos = round(seconds * 1e9)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
