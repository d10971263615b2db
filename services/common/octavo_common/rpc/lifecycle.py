"""The life of a process: start, announce, serve, drain on a signal, stop. Knows the server as a protocol only."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
WILDCARDS = ("0.0.0.0", "::", "[::]")


class Server(Protocol):
    """What `serve` needs of a server."""

    async def start(self, host: str, port: int) -> int:
        """Bind and start; returns the port."""
        ...

    async def set_serving(self, serving: bool) -> None:
        """Tell health checks."""
        ...

    async def drain(self, timeout_s: float, *, refuse_new: bool = True) -> bool:
        """Wait for the calls in flight."""
        ...

    async def stop(self, grace_s: float = 0.2) -> None:
        """End what is left."""
        ...


class Lifecycle:
    """Says when a process should end, and with which exit code.

    The first signal asks for a drain; a second one ends the drain at once.
    """

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        self.exit_code = 0
        self.reason = ""

    def stop(self, reason: str) -> None:
        """Ask for the end; asked again, end without waiting."""
        if self.stopping.is_set():
            self.hurry.set()
            return
        self.reason = reason
        self.stopping.set()

    def fail(self, reason: str) -> None:
        """Ask for the end with exit code 1: something that the process cannot live without is gone."""
        self.exit_code = 1
        log.error("process.failed", reason=reason)
        self.stop(reason)

    def watch(self, task: asyncio.Task[object], name: str) -> None:
        """Fail when a task that should run as long as the process ends by itself."""

        def ended(done: asyncio.Task[object]) -> None:
            if done.cancelled() or self.stopping.is_set():
                return
            error = done.exception()
            log.error("process.task_ended", task=name, exc_info=error)
            self.fail(f"{name} ended: {error!r}")

        task.add_done_callback(ended)

    def handle_signals(self) -> None:
        """Install the handlers in the running loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop, number.name)

    def release_signals(self) -> None:
        """Undo handle_signals."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def serve(
    server: Server,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], Awaitable[None]],
    on_drain: Callable[[], Awaitable[None]] | None = None,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    lifecycle: Lifecycle | None = None,
    advertise_host: str = "",
    drain_s: float = 10.0,
    refuse_new: bool = True,
) -> int:
    """Run a server until a signal or `lifecycle.stop`, and return the exit code.

    bind -> on_ready(address) -> health SERVING -> ... -> health NOT_SERVING, on_drain() -> wait for calls, at most
    drain_s -> stop -> on_stop(). `on_ready` announces the address to the others, and may wait for what it needs; it is
    cancelled when the end is asked for before it is done, and then there is nothing to drain. `on_stop` runs always.
    """
    life = lifecycle or Lifecycle()
    life.handle_signals()
    try:
        bound = await server.start(host, port)
        address = f"{advertise_host or advertised(host)}:{bound}"
        if await _unless(life.stopping, on_ready(address)):
            await server.set_serving(True)
            log.info("process.ready", address=address)
            await life.stopping.wait()
            log.info("process.draining", reason=life.reason)
            await _unless(life.hurry, _drain(server, drain_s, refuse_new, on_drain))
    finally:
        await server.stop()
        if on_stop is not None:
            await on_stop()
        life.release_signals()
    log.info("process.stopped", exit_code=life.exit_code)
    return life.exit_code


def advertised(host: str) -> str:
    """The name under which others on the network reach what is bound to `host`."""
    if host in WILDCARDS:
        return socket.gethostname()
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


async def _drain(
    server: Server, drain_s: float, refuse_new: bool, on_drain: Callable[[], Awaitable[None]] | None
) -> None:
    waiting = asyncio.ensure_future(server.drain(drain_s, refuse_new=refuse_new))
    try:
        if on_drain is not None:
            await on_drain()
        if not await waiting:
            log.warning("process.drain_incomplete", waited_s=drain_s)
    finally:
        waiting.cancel()


async def _unless(event: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do some work, but no longer than until the event. True when it was done."""
    task, hurried = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((task, hurried), return_when=asyncio.FIRST_COMPLETED)
    finally:
        hurried.cancel()
        task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, Exception):
        raise result
    return not task.cancelled()
