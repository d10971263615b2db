"""Runs the HTTP rim in the gateway's own event loop. Knows sockets and uvicorn, no routes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from email.utils import formatdate

import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_common.rpc.server import AddressInUse

log = structlog.get_logger(__name__)

# Open streams have been told by then; what is left is a client that does not read.
STOP_S = 1
START_S = 10.0


class _Server(uvicorn.Server):
    """Signals are the process's business, not the HTTP server's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Called by uvicorn when it begins to listen."""
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Called by uvicorn while it serves; its own loop would wake ten times a second."""
        await self.ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn around serving."""
        yield


def _dated(app: ASGIApp) -> ASGIApp:
    """The app with a Date header in every answer, as RFC 9110 asks of a server that has a clock."""

    async def dated(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"date", formatdate(usegmt=True).encode())]
            await send(message)

        await app(scope, receive, send_dated if scope["type"] == "http" else send)

    return dated


class HttpServer:
    """One ASGI app on one port."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            _dated(app),
            lifespan="off",
            # Its own is made anew by a timer, also while nobody asks.
            date_header=False,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            timeout_keep_alive=30,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; returns the port. Raises AddressInUse."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), port))
        except OSError as error:
            listening.close()
            raise AddressInUse(
                f"cannot listen on {host}:{port} for HTTP",
                hint="another process has the port: stop it, or set OCTAVO_GATEWAY_HTTP_PORT",
            ) from error
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]), name="http")
        async with asyncio.timeout(START_S):
            await self._server.ready.wait()
        return int(listening.getsockname()[1])

    @property
    def task(self) -> asyncio.Task[None]:
        """The server's task, once started."""
        assert self._task is not None
        return self._task

    async def stop(self) -> None:
        """End open requests after a second and close the port. May be called twice, or before start."""
        if self._task is None:
            return
        self._server.should_exit = True
        self._server.ending.set()
        await asyncio.gather(self._task, return_exceptions=True)
