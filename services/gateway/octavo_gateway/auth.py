"""Says who calls: API keys of users, looked up in the table and remembered for seconds. Knows no tenants' rules."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Protocol

import grpc

from octavo_common.clock import Clock
from octavo_common.errors import Unauthenticated
from octavo_common.jobs.model import Principal
from octavo_common.rpc.handlers import Context, Continuation, Handler, around, is_infrastructure

KNOWN_S = 5.0
# A revoked or mistyped key that is used in a loop costs one look a second.
UNKNOWN_S = 1.0
MAX_REMEMBERED = 4096
MAX_KEY_CHARS = 512
_HINT = "send `authorization: Bearer ok-...`; `octavo keys show` shows the key that `octavo up` has made"

_principal: ContextVar[Principal] = ContextVar("octavo_principal")


class Keys(Protocol):
    """The part of KeyStore that authentication needs."""

    async def authenticate(self, key: str) -> Principal | None:
        """Who the key belongs to, or None."""
        ...


class KeyRing:
    """Keys that were looked up a moment ago. Holds hashes, never keys."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._remembered: OrderedDict[bytes, tuple[float, Principal | None]] = OrderedDict()

    async def authenticate(self, key: str | None) -> Principal:
        """Who a key belongs to. Raises Unauthenticated."""
        if not key:
            raise Unauthenticated("the call carries no API key", code="MISSING_KEY", hint=_HINT)
        if len(key) > MAX_KEY_CHARS:
            raise self._unknown()
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        until_s, principal = self._remembered.get(name, (0.0, None))
        if until_s <= self._clock.monotonic():
            principal = await self._keys.authenticate(key)
            self._remember(name, principal)
        if principal is None:
            raise self._unknown()
        return principal

    def _remember(self, name: bytes, principal: Principal | None) -> None:
        lasts_s = UNKNOWN_S if principal is None else KNOWN_S
        self._remembered[name] = (self._clock.monotonic() + lasts_s, principal)
        self._remembered.move_to_end(name)
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    @staticmethod
    def _unknown() -> Unauthenticated:
        return Unauthenticated("the API key is unknown or revoked", code="UNKNOWN_KEY", hint=_HINT)


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls that carry a key; health and reflection are open. Handlers ask `current_principal`."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler | None:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None or is_infrastructure(handler_call_details.method):
            return handler
        return around(handler, self._admitted)

    @asynccontextmanager
    async def _admitted(self, context: Context) -> AsyncIterator[None]:
        given = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        principal = await self._keys.authenticate(bearer_key(given[0] if given else None))
        # Never undone: each call is served by a task of its own.
        _principal.set(principal)
        yield


def bearer_key(header: str | bytes | None) -> str | None:
    """The key in an authorization header; None when it holds none."""
    if isinstance(header, bytes):
        header = header.decode("utf-8", "replace")
    scheme, _, key = (header or "").strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def current_principal() -> Principal:
    """Who makes the call that is being served."""
    return _principal.get()
