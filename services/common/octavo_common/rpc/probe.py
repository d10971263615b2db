"""Asks a server for its health: `python -m octavo_common.rpc.probe host:port`. Exit code 0 when it serves."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 2.0


def serves(address: str) -> bool:
    """True when the health service of the server at ``address`` (host:port) answers SERVING in time."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            check = health_pb2_grpc.HealthStub(channel).Check  # pyright: ignore[reportAttributeAccessIssue] - set at run time
            answer = check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


if __name__ == "__main__":
    sys.exit(not serves(sys.argv[1]))
