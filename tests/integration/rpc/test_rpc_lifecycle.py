"""How a process starts, drains and ends; with signals to real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rpc_world import channel_to, failure, get_status, serving, stream

from octavo_common.errors import OctavoError, Status
from octavo_common.rpc.lifecycle import Lifecycle, advertised, serve
from octavo_common.rpc.server import AddressInUse, make_server

PROCESS = str(Path(__file__).with_name("lifecycle_process.py"))


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        return answer.status


async def test_a_drain_waits_for_calls_and_refuses_new_ones() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        go_on = asyncio.Event()

        async def slow(_context):
            await go_on.wait()

        served.worker.behaviour = slow
        call = stream(channel)
        await call.read()
        draining = asyncio.create_task(served.server.drain(10))
        await asyncio.sleep(0.05)
        assert await health(served.address) == health_pb2.HealthCheckResponse.NOT_SERVING
        refused = await failure(get_status(channel))
        assert (refused.status, refused.code) == (Status.UNAVAILABLE, "DRAINING")
        assert refused.retry_after_s is not None
        assert not draining.done()
        go_on.set()
        assert await asyncio.wait_for(draining, 5)
        assert await call.read() is grpc.aio.EOF


async def test_a_drain_may_go_on_taking_calls() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        assert await served.server.drain(1, refuse_new=False)
        assert (await get_status(channel)).id == "ok"


async def test_a_drain_of_an_endless_stream_ends_at_its_time() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        served.worker.endless = True
        call = stream(channel)
        await call.read()
        started = time.monotonic()
        assert not await served.server.drain(0.3)
        await served.server.stop()
        assert time.monotonic() - started < 3
        with pytest.raises(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert served.worker.num_active == 0


async def test_a_handler_that_aborts_late_does_not_use_up_the_drain() -> None:
    """With grpc's own stop(10) it would take the whole 10 seconds (grpc#37239)."""
    async with serving() as served, channel_to(served.address) as channel:

        async def late(_context):
            await asyncio.sleep(0.3)
            raise OctavoError("late", status=Status.ABORTED)

        served.scheduler.behaviour = late
        call = asyncio.ensure_future(failure(get_status(channel)))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        assert await served.server.drain(10)
        await served.server.stop()
        assert time.monotonic() - started < 4
        assert (await call).status is Status.ABORTED


async def test_health_watches_do_not_hold_up_a_drain() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert await served.server.drain(5)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


async def test_health_says_serving_only_after_the_announcement() -> None:
    life, seen = Lifecycle(), []

    async def on_ready(address: str) -> None:
        seen.append(await health(address))

    async def stop_soon() -> None:
        await asyncio.sleep(0.3)
        life.stop("test")

    stopper = asyncio.create_task(stop_soon())
    assert await serve(make_server(), host="127.0.0.1", port=0, on_ready=on_ready, lifecycle=life) == 0
    await stopper
    assert seen == [health_pb2.HealthCheckResponse.NOT_SERVING]


async def test_a_task_that_ends_by_itself_ends_the_process_with_a_failure() -> None:
    life, done = Lifecycle(), []

    async def dies() -> None:
        raise ValueError("boom")

    async def on_ready(_address: str) -> None:
        life.watch(asyncio.create_task(dies()), "worker loop")

    async def on_stop() -> None:
        done.append("stopped")

    code = await serve(make_server(), host="127.0.0.1", port=0, on_ready=on_ready, on_stop=on_stop, lifecycle=life)
    assert (code, done) == (1, ["stopped"])
    assert "worker loop" in life.reason


async def test_a_failing_announcement_frees_the_port_and_what_was_made() -> None:
    done, port = [], free_port()

    async def on_ready(_address: str) -> None:
        raise OctavoError("no database", status=Status.UNAVAILABLE)

    async def on_stop() -> None:
        done.append(1)

    with pytest.raises(OctavoError, match="no database"):
        await serve(make_server(), host="127.0.0.1", port=port, on_ready=on_ready, on_stop=on_stop)
    assert done == [1]
    again = make_server()
    await again.start("127.0.0.1", port)
    await again.stop()


async def test_a_taken_port_is_named() -> None:
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def on_ready(_address: str) -> None:
            raise AssertionError("never")

        with pytest.raises(AddressInUse, match=str(port)):
            await serve(make_server(), host="127.0.0.1", port=port, on_ready=on_ready)


def test_what_is_bound_to_everything_is_reached_by_its_name() -> None:
    assert advertised("127.0.0.1") == "127.0.0.1"
    assert advertised("0.0.0.0") == socket.gethostname()
    assert advertised("::1") == "[::1]"


def start(*words: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, PROCESS, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(PROCESS).parent)},
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@contextlib.contextmanager
def started(*words: str):
    process, address = start(*words)
    try:
        yield process, address
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_process_ends_within_a_second_of_a_signal(number: signal.Signals) -> None:
    with started() as (process, address):
        assert address
        process.send_signal(number)
        assert process.wait(5) == 0


def test_signals_end_the_process_every_time() -> None:
    """Shutdown of asyncio and grpc has hung now and then (grpc#40989); so: again and again, with a call in flight."""
    for _ in range(8):
        with started("endless", "0.2") as (process, address):
            code = (
                "import asyncio, sys; from rpc_world import *\n"
                "async def main():\n"
                "  async with channel_to(sys.argv[1]) as channel:\n"
                "    async for _ in stream(channel): print('x', flush=True)\n"
                "asyncio.run(main())"
            )
            client = subprocess.Popen(
                [sys.executable, "-c", code, address],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(PROCESS).parent)},
            )
            try:
                assert client.stdout is not None
                assert client.stdout.readline()
                process.send_signal(signal.SIGTERM)
                assert process.wait(5) == 0
            finally:
                client.kill()
                client.communicate()


def test_a_second_signal_ends_the_drain() -> None:
    with started("busy", "60") as (process, _):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_an_end_before_the_process_is_ready_waits_for_nothing() -> None:
    life, told = Lifecycle(), []

    async def on_ready(_address: str) -> None:
        life.stop("told to")
        await asyncio.Event().wait()

    async def note(what: str) -> None:
        told.append(what)

    running = serve(
        make_server(),
        host="127.0.0.1",
        port=0,
        on_ready=on_ready,
        on_drain=lambda: note("drained"),
        on_stop=lambda: note("stopped"),
        lifecycle=life,
    )
    assert await asyncio.wait_for(running, 5) == 0
    assert told == ["stopped"]
