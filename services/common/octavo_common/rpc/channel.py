"""Channels between our own services: options, token, deadlines and trace context on every call. Knows no service.

It rewrites the arguments of calls instead of using client interceptors: those put a task and a generator of their own
around every stream, and a stream carries tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from octavo_common.clock import Clock, SystemClock
from octavo_common.rpc import deadline
from octavo_common.rpc.auth import TOKEN_HEADER
from octavo_common.rpc.server import DEFAULT_MAX_MESSAGE_BYTES

# Above the server's MIN_PING_INTERVAL_MS, else it answers ENHANCE_YOUR_CALM.
KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000
# Calls that answer once must not wait for ever when nobody said how long; streams may last.
DEFAULT_UNARY_TIMEOUT_S = 30.0

Metadata = Sequence[tuple[str, str | bytes]]


class CallObserver(Protocol):
    """Learns of outgoing calls; telemetry implements it."""

    def started(self, method: str) -> tuple[Metadata, Callable[[grpc.aio.Call], None]]:
        """Return metadata to send along, and what to run when the call is done."""
        ...


class SilentObserver:
    """Adds nothing and looks at nothing."""

    def started(self, method: str) -> tuple[Metadata, Callable[[grpc.aio.Call], None]]:
        """Nothing to send, nothing to do."""
        return (), _nothing


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """Options of every channel between services."""
    return [
        # Else http_proxy sends even loopback calls to the proxy.
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A restarted service must be found again at once, not after grpc's default of up to 120 s.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Not a pause but how long an attempt to connect may take: a busy service answers late. No longer than a stream
        # may stand still, since calls wait for the attempt.
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Several channels to one address (tests, several gateways in one process) must not share a connection's fate.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def internal_channel(
    address: str,
    token: str,
    *,
    observer: CallObserver | None = None,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    clock: Clock | None = None,
) -> grpc.aio.Channel:
    """A channel to another service. The caller closes it, inside the loop that made it."""
    options = channel_options(max_message_bytes)
    return InternalChannel(
        grpc.aio.insecure_channel(address, options=options),
        token=token,
        observer=observer or SilentObserver(),
        clock=clock or SystemClock(),
    )


class InternalChannel(grpc.aio.Channel):
    """A channel whose calls carry the token, the trace, and no more time than the call being served has left."""

    def __init__(self, channel: grpc.aio.Channel, *, token: str, observer: CallObserver, clock: Clock) -> None:
        self._channel = channel
        self._token = token
        self._observer = observer
        self._clock = clock

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Called by generated stubs."""
        return self._calling(method, self._channel.unary_unary(method, *args, **kwargs), DEFAULT_UNARY_TIMEOUT_S)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Called by generated stubs."""
        return self._calling(method, self._channel.unary_stream(method, *args, **kwargs), None)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Called by generated stubs."""
        return self._calling(method, self._channel.stream_unary(method, *args, **kwargs), None)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Called by generated stubs."""
        return self._calling(method, self._channel.stream_stream(method, *args, **kwargs), None)

    def _calling(
        self, method: str, make_call: Callable[..., Any], default_timeout_s: float | None
    ) -> Callable[..., Any]:
        def call(request: Any = None, *, timeout: float | None = None, metadata: Metadata = (), **kwargs: Any) -> Any:
            sent, done = self._observer.started(method)
            made = make_call(
                request,
                timeout=deadline.outgoing(default_timeout_s if timeout is None else timeout, self._clock),
                metadata=(*metadata, *sent, (TOKEN_HEADER, self._token)),
                **kwargs,
            )
            made.add_done_callback(done)
            return made

        return call

    async def close(self, grace: float | None = None) -> None:
        """Close the channel and cancel what runs on it."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Connectivity now."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until connectivity differs."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until connected."""
        await self._channel.channel_ready()

    async def __aenter__(self) -> InternalChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _nothing(_: grpc.aio.Call) -> None:
    pass
