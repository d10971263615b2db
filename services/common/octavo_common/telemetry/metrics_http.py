"""A small HTTP server for /metrics and /health. Knows no metric: it is given a function for each path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from octavo_common.errors import FailedPrecondition

MAX_HEADER_BYTES = 16 * 1024
REQUEST_TIMEOUT_S = 10.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

log = structlog.get_logger(__name__)


class MetricsServer:
    """Serves GET and HEAD of /metrics and /health in the running event loop, one request a connection."""

    def __init__(self, *, metrics: Callable[[], bytes], health: Callable[[], tuple[bool, Mapping[str, Any]]]) -> None:
        self._metrics = metrics
        self._health = health
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; returns the port."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEADER_BYTES)
        except OSError as error:
            raise FailedPrecondition(
                f"cannot listen on {host}:{port} for metrics: {error.strerror}",
                code="ADDRESS_IN_USE",
                hint="set OCTAVO_METRICS_PORT to a free port, or to 0 for any",
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port. Requests in flight are few and short; they end by themselves."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) != 3:
            return _response(400, "text/plain", b"bad request\n")
        method, path = words[0], words[1].split(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, "text/plain", b"only GET\n")
        if path == b"/metrics":
            response = _response(200, CONTENT_TYPE_LATEST, self._metrics())
        elif path == b"/health":
            ok, facts = self._health()
            response = _response(200 if ok else 503, "application/json", json.dumps(facts).encode() + b"\n")
        else:
            response = _response(404, "text/plain", b"there is /metrics and /health\n")
        return response if method == b"GET" else response[: response.index(b"\r\n\r\n") + 4]


def _response(code: int, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
