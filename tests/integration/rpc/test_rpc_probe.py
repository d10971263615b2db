"""The probe that supervisors and containers ask a server with."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from octavo_common.rpc import probe
from octavo_common.rpc.server import make_server


async def serves(address: str) -> bool:
    return await asyncio.to_thread(probe.serves, address)


async def test_the_probe_says_what_the_health_service_says() -> None:
    server = make_server()
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        assert not await serves(address)
        await server.set_serving(True)
        assert all(await asyncio.gather(*(serves(address) for _ in range(20))))
        await server.drain(1)
        assert not await serves(address)
    finally:
        await server.stop()
    assert not await serves(address)


async def test_the_probe_reaches_a_server_by_name_and_by_ipv6() -> None:
    server = make_server()
    port = await server.start("::1", 0)
    await server.set_serving(True)
    try:
        assert await serves(f"[::1]:{port}")
        assert not await serves(f"no-such-host.invalid:{port}")
    finally:
        await server.stop()


async def test_a_server_without_health_does_not_serve() -> None:
    import grpc

    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        assert not await serves(f"127.0.0.1:{port}")
    finally:
        await server.stop(0)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", b"\0" * 1000])
async def test_what_speaks_something_else_does_not_serve(said: bytes) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert not await serves(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert not await serves(f"127.0.0.1:{silent.getsockname()[1]}")


async def test_the_command_ends_with_0_when_the_server_serves() -> None:
    server = make_server()
    port = await server.start("127.0.0.1", 0)
    await server.set_serving(True)
    command = [sys.executable, "-m", "octavo_common.rpc.probe"]
    try:
        served = await asyncio.to_thread(subprocess.run, [*command, f"127.0.0.1:{port}"], check=False)
        unserved = await asyncio.to_thread(subprocess.run, [*command, "127.0.0.1:1"], check=False)
    finally:
        await server.stop()
    assert (served.returncode, unserved.returncode) == (0, 1)
