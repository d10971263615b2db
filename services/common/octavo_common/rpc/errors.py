"""Turns our errors into rich gRPC statuses and back. Knows neither servers nor channels."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status as StatusProto
from grpc_status import rpc_status

from octavo_common.errors import OctavoError, Status

DOMAIN = "octavo"
# Statuses travel in HTTP/2 trailers: message, and the message again beside the hint. Of more than 8 KiB clients refuse
# some, by chance; a byte of a character beyond ASCII takes three.
MAX_TEXT_CHARACTERS, MAX_TEXT_BYTES = 1000, 1800
_BY_GRPC_CODE = {status.grpc_code: status for status in Status}


def status_proto(error: OctavoError) -> StatusProto:
    """The google.rpc.Status of an error: ErrorInfo(reason = code; hint, param), and RetryInfo if it has a time."""
    metadata = {"hint": error.hint, "param": error.param or ""}
    info = ErrorInfo(
        reason=error.code, domain=DOMAIN, metadata={name: _legal(text) for name, text in metadata.items() if text}
    )
    status = StatusProto(code=error.status.grpc_code, message=_legal(error.message))
    status.details.add().Pack(info)
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(round(max(error.retry_after_s, 0.0) * 1e9))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: OctavoError) -> None:
    """End a call with an error's status. Always raises."""
    await context.abort_with_status(rpc_status.to_status(status_proto(error)))  # pyright: ignore[reportAttributeAccessIssue] - missing in the stubs


def from_rpc_error(error: grpc.RpcError) -> OctavoError:
    """The error that the other side raised: status, code, message, hint and retry time as they were there.

    An error of the transport, or of a server that is not ours, gets the name of its status as code.
    """
    code, message = error.code(), error.details() or ""  # pyright: ignore[reportAttributeAccessIssue] - all RpcErrors of calls have them
    status = _BY_GRPC_CODE.get(code.value[0], Status.INTERNAL)
    info, retry = ErrorInfo(reason=code.name), RetryInfo()
    has_retry = False
    for detail in _details(error):
        if detail.Is(ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(RetryInfo.DESCRIPTOR):
            has_retry = detail.Unpack(retry)
    return OctavoError(
        message,
        status=status,
        code=info.reason,
        hint=info.metadata.get("hint", ""),
        param=info.metadata.get("param") or None,
        retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9 if has_retry else None,
    )


def _details(error: grpc.RpcError) -> list[Any]:
    try:
        status = rpc_status.from_call(error)  # pyright: ignore[reportArgumentType] - it reads code, details and trailers only
    except ValueError:
        # A proxy changed code or message on the way: believe the outer ones.
        return []
    return list(status.details) if status is not None else []


def _legal(text: str) -> str:
    """Text that a protobuf string and a trailer can carry: no lone surrogates, bounded length, also when encoded."""
    text, size = text.encode("utf-8", "replace").decode()[:MAX_TEXT_CHARACTERS], 0
    for place, character in enumerate(text):
        size += 1 if character.isascii() else 3 * len(character.encode())
        if size > MAX_TEXT_BYTES:
            return text[:place]
    return text
