"""A caller's message as a RawRequest. Only types are turned here: the values are validation's to judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration

from octavo.v1 import common_pb2, gateway_pb2
from octavo_common.errors import InvalidArgument
from octavo_gateway.requests import Beam, Message, OnDisconnect, RawRequest

T = TypeVar("T")


def raw_request(message: gateway_pb2.Generation) -> RawRequest:
    """What the caller wrote, unchecked."""
    sampling = message.sampling
    given = message.WhichOneof("input")
    return RawRequest(
        model=message.model,
        prompt=message.prompt if given == "prompt" else None,
        messages=[Message(role=m.role, content=m.content) for m in message.chat.messages] if given == "chat" else None,
        token_ids=list(message.tokens.ids) if given == "tokens" else None,
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        seed=sampling.seed if sampling.HasField("seed") else None,
        max_tokens=sampling.max_tokens if sampling.HasField("max_tokens") else None,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else None,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_words=list(sampling.bad_words),
        allowed_token_ids=list(sampling.allowed_token_ids),
        min_tokens=sampling.min_tokens,
        include_stop=sampling.include_stop,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        logprobs_mode=_logprobs_mode(sampling.logprobs_mode),
        n=message.n or 1,
        best_of=message.best_of or None,
        beam=_beam(message.beam_search) if message.HasField("beam_search") else None,
        structured=_structured(message.structured_output),
        priority=message.priority,
        timeout_s=seconds(message.timeout) if message.HasField("timeout") else None,
        idempotency_key=message.idempotency_key,
        on_disconnect=on_disconnect(message.on_disconnect),
        fair_key=message.fair_key,
        cache_salt=message.cache_salt,
        echo=message.echo,
    )


def _structured(message: gateway_pb2.StructuredOutput) -> list[tuple[str, Any]]:
    kind = message.WhichOneof("kind")
    if kind is None:
        return []
    if kind == "choice":
        return [("choice", list(message.choice.texts))]
    return [("ebnf" if kind == "grammar" else kind, getattr(message, kind))]


def _logprobs_mode(value: int) -> str:
    modes = {
        common_pb2.LOGPROBS_MODE_UNSPECIFIED: "raw",
        common_pb2.LOGPROBS_MODE_RAW: "raw",
        common_pb2.LOGPROBS_MODE_PROCESSED: "processed",
    }
    return _known(modes, value, "logprobs_mode")


def _beam(message: gateway_pb2.BeamSearch) -> Beam:
    stopping = {
        gateway_pb2.EARLY_STOPPING_UNSPECIFIED: False,
        gateway_pb2.EARLY_STOPPING_HEURISTIC: False,
        gateway_pb2.EARLY_STOPPING_ALWAYS: True,
        gateway_pb2.EARLY_STOPPING_NEVER: None,
    }
    return Beam(
        width=message.width,
        length_penalty=message.length_penalty if message.HasField("length_penalty") else 1.0,
        early_stopping=_known(stopping, message.early_stopping, "early_stopping"),
    )


def _known(values: Mapping[Any, T], number: int, param: str) -> T:
    """The value of an enum's number. Raises InvalidArgument for one that it does not have."""
    if number not in values:
        raise InvalidArgument(f"{param} has no value {number}", param=param)
    return values[number]


def on_disconnect(value: int) -> OnDisconnect:
    """The enum's value; unspecified means cancel. Raises InvalidArgument for a number that it does not have."""
    if value == gateway_pb2.ON_DISCONNECT_DETACH:
        return OnDisconnect.DETACH
    if value in (gateway_pb2.ON_DISCONNECT_UNSPECIFIED, gateway_pb2.ON_DISCONNECT_CANCEL):
        return OnDisconnect.CANCEL
    raise InvalidArgument(f"on_disconnect has no value {value}", param="on_disconnect")


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    # Not ToTimedelta: its range is smaller than the message's.
    return duration.seconds + duration.nanos / 1e9
