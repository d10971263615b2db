"""Reads requests: key, body, JSON. Knows HTTP and no parameters."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from octavo_common.jobs.model import Principal
from octavo_gateway.api import GenerationApi
from octavo_gateway.auth import bearer_key
from octavo_gateway.openai.errors import BadRequest


class ClientGone(Exception):
    """The client has closed the connection: there is nobody to answer."""


async def authenticate(request: Request, api: GenerationApi) -> Principal:
    """Who makes the request. Raises Unauthenticated."""
    return await api.authenticate(bearer_key(request.headers.get("authorization")))


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body as JSON. Raises BadRequest for a body that is too large or is no JSON, ClientGone."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise BadRequest(
            f"bodies in the encoding {encoding[:64]!r} are not taken",
            code="UNSUPPORTED_ENCODING",
            hint="send the body as it is, without Content-Encoding",
            http_status=415,
        )
    data = await _read(request, max_bytes)
    # Clients that send JSON under another name (curl -d does) are understood.
    hint = "" if "json" in request.headers.get("content-type", "json") else "send JSON as application/json"
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"the body is not valid UTF-8 at byte {error.start}", code="MALFORMED_JSON", hint=hint
        ) from error
    except BadRequest:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}"[:300], code="MALFORMED_JSON", hint=hint) from error


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect as error:
        raise ClientGone from error
    return bytes(data)


def _too_large(max_bytes: int) -> BadRequest:
    return BadRequest(
        f"the body is larger than {max_bytes} bytes", code="BODY_TOO_LARGE", hint="shorten the prompt", http_status=413
    )


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"the body is not valid JSON: {name} is no JSON number", code="MALFORMED_JSON")
