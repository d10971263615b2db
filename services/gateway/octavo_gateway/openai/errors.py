"""Errors in OpenAI's form: what its clients parse, retry on and show. Knows no requests."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from octavo_common.errors import InvalidArgument, OctavoError, Status

# Codes that clients of OpenAI look for by name; the others are our own in lower case.
_CODES = {
    "PROMPT_TOO_LONG": "context_length_exceeded",
    "PROMPT_TOO_LARGE": "context_length_exceeded",
    "MISSING_KEY": "invalid_api_key",
    "UNKNOWN_KEY": "invalid_api_key",
    "QUOTA_EXCEEDED": "rate_limit_exceeded",
}
_TYPES = {
    Status.UNAUTHENTICATED: "authentication_error",
    Status.PERMISSION_DENIED: "permission_error",
    Status.RESOURCE_EXHAUSTED: "rate_limit_error",
}
# Told to try again although the error itself does not say when.
_RETRIED = (Status.RESOURCE_EXHAUSTED, Status.UNAVAILABLE)


class BadRequest(InvalidArgument):
    """A request that is no request of this API; `http_status` may be narrower than 400."""

    def __init__(
        self, message: str, *, code: str, param: str | None = None, hint: str = "", http_status: int = 400
    ) -> None:
        super().__init__(message, code=code, param=param, hint=hint)
        self.http_status = http_status


def http_status(error: OctavoError) -> int:
    """The status number of an error."""
    return error.http_status if isinstance(error, BadRequest) else error.status.http_code


def error_body(error: OctavoError) -> dict[str, Any]:
    """{"error": {message, type, param, code}} and, where there is one, our hint."""
    status = http_status(error)
    body: dict[str, Any] = {
        "message": _clean(error.message),
        "type": _TYPES.get(error.status, "invalid_request_error" if status < 499 else "server_error"),
        "param": None if error.param is None else _clean(error.param),
        "code": _CODES.get(error.code, error.code.lower()),
    }
    if error.hint:
        body["hint"] = _clean(error.hint)
    return {"error": body}


def error_response(error: OctavoError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The whole answer."""
    headers = dict(headers or {})
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.status in _RETRIED:
        retry_after_s = 1.0
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        headers["Retry-After-Ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
    if error.status is Status.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=http_status(error), headers=headers)


def _clean(text: str) -> str:
    """Without lone surrogates, which a message may quote from a request and which have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode("utf-8")
