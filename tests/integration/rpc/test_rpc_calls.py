"""Ports, tokens, deadlines, pings, proxies, cancellation: what happens around a call."""

from __future__ import annotations

import asyncio
import gc
import time

import grpc
import pytest
from fakes.far_away import far_away
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_world import TOKEN, Scheduler, channel_to, failure, get_status, read_all, serving, stream

from octavo.v1 import scheduler_pb2_grpc
from octavo_common.clock import SystemClock
from octavo_common.errors import Status
from octavo_common.rpc import channel as channel_module
from octavo_common.rpc import deadline
from octavo_common.rpc import server as server_module
from octavo_common.rpc.auth import TokenInterceptor
from octavo_common.rpc.server import AddressInUse, make_server


async def test_a_second_server_on_the_port_is_refused() -> None:
    """By default it would bind silently and steal connections (grpc#16920)."""
    async with serving() as served:
        other = make_server()
        with pytest.raises(AddressInUse):
            await other.start("127.0.0.1", int(served.address.rsplit(":", 1)[1]))
        await other.stop()


@pytest.mark.parametrize("token", ["wrong", "sécret", TOKEN + "x", TOKEN[:-1]])
async def test_another_token_is_refused_before_the_message_is_decoded(token: str) -> None:
    async with serving(interceptors=[TokenInterceptor(TOKEN)]) as served:
        metadata = (("x-octavo-token", token.encode("ascii", "replace").decode()),)
        async with grpc.aio.insecure_channel(served.address) as channel:
            got = await failure(get_status(channel, metadata=metadata))
            assert (got.status, got.code) == (Status.UNAUTHENTICATED, "UNAUTHENTICATED")
            call = channel.unary_stream("/octavo.v1.WorkerService/Stream")(b"\x0a\x02\xff\xfe", metadata=metadata)
            assert (await failure(read_all(call))).status is Status.UNAUTHENTICATED
        assert served.scheduler.contexts == []


async def test_no_token_or_two_are_refused_and_the_right_one_passes() -> None:
    async with serving(interceptors=[TokenInterceptor(TOKEN)]) as served:
        async with grpc.aio.insecure_channel(served.address) as channel:
            assert (await failure(get_status(channel))).status is Status.UNAUTHENTICATED
            twice = (("x-octavo-token", TOKEN), ("x-octavo-token", TOKEN))
            assert (await failure(get_status(channel, metadata=twice))).status is Status.UNAUTHENTICATED
        async with channel_to(served.address) as channel:
            assert (await get_status(channel)).id == "ok"


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(ValueError, match="empty"):
        TokenInterceptor("")


async def test_health_and_reflection_need_no_token() -> None:
    interceptors = [TokenInterceptor(TOKEN)]
    async with serving(interceptors=interceptors) as served, grpc.aio.insecure_channel(served.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "octavo.v1.WorkerService", "octavo.v1.SchedulerService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        (listed,) = await read_all(info(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
        names = {service.name for service in listed.list_services_response.service}
        assert {"octavo.v1.WorkerService", "octavo.v1.SchedulerService", "grpc.health.v1.Health"} <= names
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="octavo.v1.SchedulerService")
        (file,) = await read_all(info(iter([asked])))
        pool = DescriptorPool()
        pool.Add(FileDescriptorProto.FromString(file.file_descriptor_response.file_descriptor_proto[0]))
        assert "GetStatus" in pool.FindServiceByName("octavo.v1.SchedulerService").methods_by_name


async def test_a_busy_server_has_time_to_accept_a_connection() -> None:
    async with serving() as served:
        with far_away(served.address, delay_s=0.3) as address:
            async with channel_to(address) as channel:
                assert (await get_status(channel, timeout=5)).id == "ok"


async def test_the_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving() as served, channel_to(served.address) as channel:
        assert (await get_status(channel, timeout=5)).id == "ok"


async def test_a_unary_call_without_a_deadline_gets_one_and_a_stream_does_not() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        left: list[float | None] = []

        async def look(context):
            left.append(context.time_remaining())

        served.both_do(look)
        await get_status(channel)
        await read_all(stream(channel))
        await get_status(channel, timeout=3)
    assert left[0] is not None
    assert 20 < left[0] <= channel_module.DEFAULT_UNARY_TIMEOUT_S + 0.1
    assert left[1] is None
    assert left[2] is not None
    assert left[2] <= 3.1


async def test_a_call_made_while_serving_another_ends_before_it() -> None:
    clock = SystemClock()
    async with serving() as inner, serving() as outer, channel_to(inner.address) as onward:
        left: list[float | None] = []

        async def look(context):
            left.append(context.time_remaining())

        async def relay(context):
            await get_status(onward)
            await get_status(onward, timeout=0.5)
            assert deadline.outgoing(None, clock) is not None
            deadline.leave()
            assert deadline.outgoing(None, clock) is None

        inner.scheduler.behaviour, outer.scheduler.behaviour = look, relay
        async with channel_to(outer.address) as channel:
            await get_status(channel, timeout=2)
    assert 1 < left[0] < 2
    assert left[1] <= 0.6


async def test_a_passed_deadline_ends_the_handler() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        served.worker.endless = True
        got = await failure(read_all(stream(channel, timeout=0.2)))
        assert got.status is Status.DEADLINE_EXCEEDED
        await asyncio.wait_for(served.worker.ended.wait(), 2)
        assert served.worker.num_active == 0
        assert await served.server.in_flight.wait_idle(2)


async def test_a_cancelled_stream_ends_its_handler_at_once() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        served.worker.endless = True
        call = stream(channel)
        async for _ in call:
            break
        call.cancel()
        started = time.monotonic()
        await asyncio.wait_for(served.worker.ended.wait(), 2)
        assert time.monotonic() - started < 1
        assert await served.server.in_flight.wait_idle(2)


async def test_many_cancelled_calls_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served, channel_to(served.address) as channel:
        served.worker.endless = True
        before = len(asyncio.all_tasks())
        for number in range(60):
            call = stream(channel)
            if number % 3:
                async for _ in call:
                    break
            call.cancel()
        assert await served.server.in_flight.wait_idle(5)
        assert served.worker.num_active == 0
        gc.collect()
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) <= before + 2
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_blocking_handler_is_refused_when_it_is_called_first() -> None:
    class Blocking(Scheduler):
        def GetStatus(self, request, context):
            return None

    server = make_server()
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(Blocking(), server)
    port = await server.start("127.0.0.1", 0)
    async with channel_to(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await get_status(channel, timeout=2)
    await server.stop()


def test_our_clients_ping_less_often_than_our_servers_allow() -> None:
    assert channel_module.KEEPALIVE_TIME_MS >= 2 * server_module.MIN_PING_INTERVAL_MS


async def test_pings_during_a_silent_prefill_break_nothing() -> None:
    """With grpc's own defaults this client is thrown out with `too many pings` after three of them."""
    options = [("grpc.keepalive_time_ms", 1000), ("grpc.http2.max_pings_without_data", 0)]

    async def silent(_context):
        await asyncio.sleep(5.5)

    async with serving(min_ping_interval_ms=500) as served:
        served.worker.behaviour = silent
        async with grpc.aio.insecure_channel(served.address, options=options) as channel:
            assert len(await read_all(stream(channel, timeout=20))) == 1


async def test_a_restarted_server_is_found_again_within_seconds() -> None:
    async with serving() as served:
        port = int(served.address.rsplit(":", 1)[1])
        async with channel_to(served.address) as channel:
            await get_status(channel)
            await served.server.stop(0)
            assert (await failure(get_status(channel, timeout=2))).status is Status.UNAVAILABLE
            await asyncio.sleep(1.0)
            again = make_server()
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(Scheduler(), again)
            await again.start("127.0.0.1", port)
            started = time.monotonic()
            await get_status(channel, timeout=10, wait_for_ready=True)
            assert time.monotonic() - started < 4
            await again.stop()
