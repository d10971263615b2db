"""Errors that callers can act on, made from gRPC statuses. Knows nothing of calls and retries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # pyright: ignore[reportMissingTypeStubs] - it has none

DOMAIN = "octavo"
DETAILS_KEY = "grpc-status-details-bin"


class OctavoError(Exception):
    """Base of all errors of the SDK: a stable code, one sentence, and what to do about it.

    ``told`` is True when an Octavo service said so, False when the transport failed under the call.
    ``retry_after_s`` is set when a later try may succeed; ``job_id`` when the error belongs to a known job.
    """

    status: ClassVar[str] = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        hint: str = "",
        param: str = "",
        retry_after_s: float | None = None,
        told: bool = False,
        job_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.status
        self.hint = hint
        self.param = param
        self.retry_after_s = retry_after_s
        self.told = told
        self.job_id = job_id


class InvalidArgumentError(OctavoError):
    """The request can never be served as it is."""

    status = "INVALID_ARGUMENT"


class UnauthenticatedError(OctavoError):
    """The API key is missing or unknown."""

    status = "UNAUTHENTICATED"


class PermissionDeniedError(OctavoError):
    """The key is known and its scope does not allow the call."""

    status = "PERMISSION_DENIED"


class NotFoundError(OctavoError):
    """There is no such job or model that the key may see."""

    status = "NOT_FOUND"


class AlreadyExistsError(OctavoError):
    """The idempotency key was used with another request."""

    status = "ALREADY_EXISTS"


class ResourceExhaustedError(OctavoError):
    """A limit is reached; ``retry_after_s`` says when to come back, if that helps."""

    status = "RESOURCE_EXHAUSTED"


class FailedPreconditionError(OctavoError):
    """The system is in a state that does not allow it."""

    status = "FAILED_PRECONDITION"


class AbortedError(OctavoError):
    """The job cannot go on from what the caller holds; the job id fetches its result."""

    status = "ABORTED"


class DeadlineExceededError(OctavoError):
    """The deadline of the call or of the job has passed."""

    status = "DEADLINE_EXCEEDED"


class CancelledError(OctavoError):
    """The job was cancelled."""

    status = "CANCELLED"


class UnavailableError(OctavoError):
    """No gateway answers now; a later try may succeed."""

    status = "UNAVAILABLE"


class UnimplementedError(OctavoError):
    """The gateway does not know the call; it is probably older than the SDK."""

    status = "UNIMPLEMENTED"


class InternalError(OctavoError):
    """A fault of the platform."""

    status = "INTERNAL"


BY_STATUS: dict[str, type[OctavoError]] = {
    kind.status: kind
    for kind in (
        InvalidArgumentError,
        UnauthenticatedError,
        PermissionDeniedError,
        NotFoundError,
        AlreadyExistsError,
        ResourceExhaustedError,
        FailedPreconditionError,
        AbortedError,
        DeadlineExceededError,
        CancelledError,
        UnavailableError,
        UnimplementedError,
        InternalError,
    )
}


def from_rpc_error(error: grpc.RpcError, *, job_id: str = "") -> OctavoError:
    """Make a typed error of a failed call, of the sync or the asyncio API."""
    call = cast(Any, error)
    status: str = call.code().name if call.code() is not None else "UNKNOWN"
    return from_status(status, call.details() or "", call.trailing_metadata() or (), job_id=job_id)


def from_status(status: str, message: str, metadata: Iterable[Any], *, job_id: str = "") -> OctavoError:
    """Make a typed error of a status name, its message and the trailing metadata with the rich details."""
    kind = BY_STATUS.get(status, OctavoError)
    code, hint, param, told = "", "", "", False
    retry_after_s: float | None = None
    for detail in _details(metadata):
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            told = info.domain == DOMAIN
            code, hint, param = info.reason, info.metadata.get("hint", ""), info.metadata.get("param", "")
            job_id = job_id or info.metadata.get("job_id", "")
        elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    if not told:
        message, advice = _transport_words(status, message)
        hint = hint or advice
    return kind(
        message or status.lower().replace("_", " "),
        code=code,
        hint=hint,
        param=param,
        retry_after_s=retry_after_s,
        told=told,
        job_id=job_id,
    )


def client_closed() -> FailedPreconditionError:
    """Make the error of a call on a client that was closed."""
    return FailedPreconditionError(
        "the client is closed", code="CLIENT_CLOSED", hint="make a new one, or close it after its last call"
    )


def still_waiting(job_id: str, timeout_s: float) -> DeadlineExceededError:
    """Make the error of a wait that took too long: the job itself has not failed."""
    return DeadlineExceededError(
        f"job {job_id} has not ended within {timeout_s:g} s",
        code="WAIT_TIMEOUT",
        hint="it goes on: wait again by its id, or end it with jobs.cancel",
        job_id=job_id,
    )


def _transport_words(status: str, message: str) -> tuple[str, str]:
    """What the transport says, in words for people, and what to do about it."""
    if status == "DEADLINE_EXCEEDED":
        return "no answer came in time", "try again, or give the client a longer timeout_s"
    if status == "UNIMPLEMENTED":
        return message, "is this address an Octavo gateway, and as new as the SDK?"
    if status != "UNAVAILABLE":
        return message, ""
    # The innermost of several reasons is the one that helps.
    reason = message.rsplit(": ", 1)[-1].strip()
    if _NOT_CONNECTED.search(message):
        what, hint = (
            "no gateway can be reached",
            "is the platform running at this address? `octavo status` and `octavo up`",
        )
    else:
        what, hint = "the connection to the gateway broke", "try again; does the platform still run? `octavo status`"
    return f"{what}: {reason}" if reason else what, hint


# As gRPC says that it found no address, or that no address took its connection.
_NOT_CONNECTED = re.compile("failed to connect|resolving|resolution", re.IGNORECASE)


def _details(metadata: Iterable[Any]) -> list[Any]:
    for key, value in metadata:
        if key == DETAILS_KEY:
            try:
                return list(status_pb2.Status.FromString(value).details)
            except DecodeError:
                return []
    return []
