"""Opens gRPC channels to gateways: addresses, keepalive, limits, the key. Knows nothing of what is called."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from octavo.errors import InvalidArgumentError

DEFAULT_ADDRESS = "127.0.0.1:50051"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# Gateways refuse pings more often than every 10 s; a silent prompt may last longer than any shorter interval.
KEEPALIVE_S = 20
# How long leaving a stream early may hold up its caller.
CANCEL_TIMEOUT_S = 5.0


def parse_addresses(text: str | Sequence[str]) -> tuple[str, ...]:
    """Split ``host:port`` addresses given as a list or with commas; raises InvalidArgumentError for anything else."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    addresses = tuple(part.strip() for part in parts if part.strip())
    for address in addresses:
        _, colon, port = address.rpartition(":")
        if not colon or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidArgumentError(
                f"{address!r} is not an address", hint=f"give host:port, for example {DEFAULT_ADDRESS}", param="address"
            )
    if not addresses:
        raise InvalidArgumentError("no address was given", hint=f"for example {DEFAULT_ADDRESS}", param="address")
    return addresses


def is_loopback(address: str) -> bool:
    """True for addresses of this machine, which no proxy can reach."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def channel_options(address: str) -> list[tuple[str, int]]:
    """Options of a channel to a gateway."""
    options = [
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # The retries are ours: gRPC's own know no idempotency keys and stop at the first answer of a stream.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Not a pause but how long an attempt to connect may take: a busy gateway or one far away needs its time.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # Clients of one process share no connection, so that closing one never touches another.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def call_metadata(api_key: str, extra: Sequence[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
    """Metadata of every call."""
    return (*((("authorization", f"Bearer {api_key}"),) if api_key else ()), *extra)
