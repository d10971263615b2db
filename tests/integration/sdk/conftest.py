"""Both clients behind one face, so that every test of the SDK runs over the blocking and the asyncio one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from scripted_gateway import Gateway, Platform

import octavo


class Both:
    """Runs one coroutine over AsyncClient, or the same over Client, by awaiting what needs it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def read(
        self,
        address: str,
        *,
        stop_after: int | None = None,
        retry: octavo.RetryPolicy | None = None,
        **parameters: object,
    ) -> tuple[list, object, object]:
        """(chunks, stream, error) of one generation; leaves the stream after ``stop_after`` chunks."""
        self._retry = retry or FAST
        return (
            asyncio.run(self._read_async(address, stop_after, parameters))
            if self.kind == "async"
            else (self._read_sync(address, stop_after, parameters))
        )

    def _read_sync(self, address, stop_after, parameters):
        chunks, error = [], None
        with octavo.Client(address, api_key="ok-1", retry=self._retry) as client:
            stream = client.generate("hi", **parameters)
            try:
                for chunk in stream:
                    chunks.append(chunk)
                    if len(chunks) == stop_after:
                        stream.close()
            except octavo.OctavoError as caught:
                error = caught
        return chunks, stream, error

    async def _read_async(self, address, stop_after, parameters):
        chunks, error = [], None
        async with octavo.AsyncClient(address, api_key="ok-1", retry=self._retry) as client:
            stream = client.generate("hi", **parameters)
            try:
                async for chunk in stream:
                    chunks.append(chunk)
                    if len(chunks) == stop_after:
                        await stream.close()
            except octavo.OctavoError as caught:
                error = caught
        return chunks, stream, error

    def ask(self, address: str, method: str, *args: object, **kwargs: object) -> object:
        """The answer of one method, for example ``jobs.get``."""

        def resolve(client: object) -> Callable:
            for name in method.split("."):
                client = getattr(client, name)
            return client  # type: ignore[return-value]

        if self.kind == "sync":
            with octavo.Client(address, api_key="ok-1", retry=FAST) as client:
                return resolve(client)(*args, **kwargs)

        async def run() -> object:
            async with octavo.AsyncClient(address, api_key="ok-1", retry=FAST) as client:
                return await resolve(client)(*args, **kwargs)

        return asyncio.run(run())


FAST = octavo.RetryPolicy(base_s=0.01, max_s=0.05, stream_patience_s=2.0)


@pytest.fixture(params=["sync", "async"])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture
def gateway(platform: Platform) -> Iterator[Callable[..., Gateway]]:
    started: list[Gateway] = []

    def start(name: str, *scripts: list[object]) -> Gateway:
        started.append(Gateway(name, platform, *scripts).start())
        return started[-1]

    yield start
    for one in started:
        one.stop()
