"""Serves the console's pages over HTTP. Knows Streamlit and uvicorn, nothing of what the pages show.

`streamlit run` would do, but wakes seventy times a second with nobody there: it looks for changes of its configuration
files, and its HTTP server for the wish to end. An operator's page is open seldom, so this server waits for events only.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping

import uvicorn
from streamlit import App
from streamlit.web import bootstrap

# What a browser still loads when the end is asked for.
STOP_S = 3


class _Server(uvicorn.Server):
    """Sleeps until a request or a signal comes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    async def main_loop(self) -> None:
        """Called by uvicorn while it serves."""
        await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Called by uvicorn around serving; its own handlers would not wake the loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        # Asked again: without waiting for open pages.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._ending.set()


def serve(script: str, *, host: str, port: int, options: Mapping[str, str | bool]) -> None:
    """Serve the app in ``script`` until SIGTERM or SIGINT. ``options`` are Streamlit's, and win over its files."""
    bootstrap.load_config_options({**options, "server.address": host, "server.port": port})
    asyncio.run(_serve(App(script), host, port))


async def _serve(app: App, host: str, port: int) -> None:
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        # It would have to be made anew every second. A browser takes the time at which an answer came.
        date_header=False,
        ws="websockets-sansio",
        ws_ping_interval=30,
        ws_ping_timeout=30,
        timeout_graceful_shutdown=STOP_S,
    )
    await _Server(config).serve()
