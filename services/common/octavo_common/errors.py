"""Errors that people and programs can act on. Knows nothing of gRPC messages or HTTP; only their status numbers."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """The canonical status of an error: (gRPC status code, HTTP status code)."""

    CANCELLED = (1, 499)
    INVALID_ARGUMENT = (3, 400)
    DEADLINE_EXCEEDED = (4, 504)
    NOT_FOUND = (5, 404)
    ALREADY_EXISTS = (6, 409)
    PERMISSION_DENIED = (7, 403)
    RESOURCE_EXHAUSTED = (8, 429)
    FAILED_PRECONDITION = (9, 400)
    ABORTED = (10, 409)
    UNIMPLEMENTED = (12, 501)
    INTERNAL = (13, 500)
    UNAVAILABLE = (14, 503)
    UNAUTHENTICATED = (16, 401)

    @property
    def grpc_code(self) -> int:
        """Number of the gRPC status code."""
        return self.value[0]

    @property
    def http_code(self) -> int:
        """Number of the HTTP status code."""
        return self.value[1]


class OctavoError(Exception):
    """Base of all errors that reach a user: a status, a stable code, one sentence, and what to do about it.

    Subclasses set ``status`` and ``code``; an instance may carry a hint and a time after which a retry makes sense.
    """

    status: Status = Status.INTERNAL
    code: str = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str | None = None,
        status: Status | None = None,
        retry_after_s: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retry_after_s = retry_after_s
        # Name of the request's field at fault, in the caller's terms.
        self.param = param
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status

    def fresh(self) -> OctavoError:
        """The same to be raised again: tracebacks grow on an exception that several raise."""
        return OctavoError(
            self.message,
            hint=self.hint,
            code=self.code,
            status=self.status,
            retry_after_s=self.retry_after_s,
            param=self.param,
        )


class InvalidArgument(OctavoError):
    """The request can never be served as it is."""

    status, code = Status.INVALID_ARGUMENT, "INVALID_ARGUMENT"


class PromptTooLong(InvalidArgument):
    """The prompt leaves no room for a token of the answer."""

    code = "PROMPT_TOO_LONG"

    def __init__(self, *, num_tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {num_tokens} tokens, and the model takes at most {limit - 1}",
            hint="shorten the prompt, or ask a model with a longer context",
            param="prompt",
        )


class NotFound(OctavoError):
    """There is no such thing that the caller may see."""

    status, code = Status.NOT_FOUND, "NOT_FOUND"


class ModelNotFound(NotFound):
    """No worker has served a model of that name."""

    code = "MODEL_NOT_FOUND"


class JobNotFound(NotFound):
    """There is no such job that the caller may see."""

    code = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}", hint="`octavo jobs list` shows the jobs that your key may see")


class Unauthenticated(OctavoError):
    """The key is missing or unknown."""

    status, code = Status.UNAUTHENTICATED, "UNAUTHENTICATED"


class PermissionDenied(OctavoError):
    """The key is known and its scope does not allow the call."""

    status, code = Status.PERMISSION_DENIED, "PERMISSION_DENIED"


class QuotaExceeded(OctavoError):
    """The tenant has as many queued jobs as it may."""

    status, code = Status.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED"


class IdempotencyConflict(OctavoError):
    """The idempotency key was used with another request."""

    status, code = Status.ALREADY_EXISTS, "IDEMPOTENCY_KEY_REUSED"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used with another request",
            hint="use a new key for a new request",
            param="idempotency_key",
        )


class FailedPrecondition(OctavoError):
    """The system is in a state that does not allow it."""

    status, code = Status.FAILED_PRECONDITION, "FAILED_PRECONDITION"


class StreamDiverged(OctavoError):
    """The job ended with other tokens than the stream has sent."""

    status, code = Status.ABORTED, "STREAM_DIVERGED"


class DeadlineExceeded(OctavoError):
    """The job's deadline has passed."""

    status, code = Status.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"


class Cancelled(OctavoError):
    """The job was cancelled."""

    status, code = Status.CANCELLED, "CANCELLED"


class Unavailable(OctavoError):
    """Something that is needed does not answer now; a later try may succeed."""

    status, code = Status.UNAVAILABLE, "UNAVAILABLE"


class Internal(OctavoError):
    """A fault of ours."""

    status, code = Status.INTERNAL, "INTERNAL"
