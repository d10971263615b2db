"""Makes gRPC servers: options, health, reflection, and what happens around every call. Knows no service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo_common.clock import Clock, SystemClock
from octavo_common.errors import Unavailable
from octavo_common.rpc.calls import CallInterceptor, InFlight
from octavo_common.rpc.lifecycle import Lifecycle, serve

__all__ = ["DEFAULT_MAX_MESSAGE_BYTES", "AddressInUse", "Lifecycle", "RpcServer", "make_server", "serve"]

DEFAULT_MAX_MESSAGE_BYTES = 16 * 2**20
# Clients ping every 20 s (channel.py); half of it leaves room for others.
MIN_PING_INTERVAL_MS = 10_000
# A stream must end when its client's machine is gone without a word.
KEEPALIVE_TIME_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 20_000


class AddressInUse(Unavailable):
    """The port belongs to another process, for now."""

    code = "ADDRESS_IN_USE"


class RpcServer:
    """A grpc.aio server with health, reflection and a count of its calls.

    Takes servicers like a grpc server: `add_XServicer_to_server(servicer, rpc_server)`.
    """

    def __init__(self, server: grpc.aio.Server, in_flight: InFlight) -> None:
        self.grpc = server
        self.in_flight = in_flight
        self.health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - missing in the stubs
        self._services: list[str] = []

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Called by generated code."""
        self._services += [s for h in generic_rpc_handlers if (s := h.service_name())]
        self.grpc.add_generic_rpc_handlers(tuple(generic_rpc_handlers))

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Called by generated code. Ignored: grpc.aio reads the generic handlers."""

    async def start(self, host: str, port: int) -> int:
        """Bind and start; health says NOT_SERVING until `set_serving(True)`. Returns the port.

        Raises AddressInUse.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        reflection.enable_server_reflection((*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc)
        await self.set_serving(False)
        try:
            bound = self.grpc.add_insecure_port(f"{_bracketed(host)}:{port}")
        except RuntimeError as error:
            raise AddressInUse(
                f"cannot listen on {host}:{port}", hint="another process has the port: stop it, or set another one"
            ) from error
        await self.grpc.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """Tell health checks, for the whole server and each service."""
        state = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (health.OVERALL_HEALTH, *self._services):
            await self.health.set(name, state)

    async def drain(self, timeout_s: float, *, refuse_new: bool = True) -> bool:
        """Say NOT_SERVING for good and wait for the calls in flight. False when some are left."""
        await self.health.enter_graceful_shutdown()
        self.in_flight.refusing = refuse_new
        return await self.in_flight.wait_idle(timeout_s)

    async def stop(self, grace_s: float = 0.2) -> None:
        """End what is left and close the port."""
        await self.grpc.stop(grace_s)


def make_server(
    *,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    min_ping_interval_ms: int = MIN_PING_INTERVAL_MS,
    clock: Clock | None = None,
) -> RpcServer:
    """A server that fails in one way, see CallInterceptor. `interceptors` see raw requests; the first one is outermost.

    Must be called inside the event loop that will run it.
    """
    in_flight = InFlight()
    options: list[tuple[str, Any]] = [
        # Else a second server on the port binds silently and steals connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        # Else a client that pings during a silent prefill is thrown out with "too many pings". This is core's
        # GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS: the string has no "recv", and a wrong one is ignored.
        ("grpc.http2.min_ping_interval_without_data_ms", min_ping_interval_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ]
    outermost = CallInterceptor(in_flight, clock or SystemClock())
    return RpcServer(grpc.aio.server(interceptors=(outermost, *interceptors), options=options), in_flight)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
