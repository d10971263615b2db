"""Admits calls between services that carry the token of the data directory. Knows nothing of users' keys."""

from __future__ import annotations

import hmac
from typing import Any

import grpc

from octavo_common.errors import OctavoError, Unauthenticated
from octavo_common.rpc.errors import abort
from octavo_common.rpc.handlers import Context, Continuation, Handler, is_infrastructure, rebuilt

TOKEN_HEADER = "x-octavo-token"


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the right token, before their message is decoded; health and reflection are open."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("an empty token would admit everybody")
        self._token = token.encode()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Return the method's handler, or one of the same kind that refuses."""
        handler = await continuation(handler_call_details)
        if handler is None or is_infrastructure(handler_call_details.method):
            return handler
        given = [v for k, v in handler_call_details.invocation_metadata or () if k == TOKEN_HEADER]
        if len(given) == 1 and hmac.compare_digest(_bytes(given[0]), self._token):
            return handler
        return refusing(
            handler,
            Unauthenticated(
                "this call is for the services of this installation only",
                hint=f"send the token of the data directory as {TOKEN_HEADER}",
            ),
        )


def refusing(handler: Handler, error: OctavoError) -> Handler:
    """A handler of the same kind that answers every call with an error and decodes nothing."""

    async def refuse(request: Any, context: Context) -> None:
        await abort(context, error)

    return rebuilt(handler, refuse, deserializer=None)


def _bytes(value: str | bytes) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value
