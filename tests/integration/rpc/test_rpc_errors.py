"""How calls fail: every error becomes one status with code, hint and retry time, and nothing leaks."""

from __future__ import annotations

import asyncio
import random
import string

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_status import rpc_status
from rpc_world import STATUS, STREAM, Worker, WritingWorker, channel_to, failure, get_status, read_all, serving, stream
from structlog.testing import capture_logs

from octavo.v1 import worker_pb2, worker_pb2_grpc
from octavo_common import errors
from octavo_common.errors import OctavoError, Status
from octavo_common.rpc.errors import from_rpc_error

STYLES = pytest.mark.parametrize("style", [Worker, WritingWorker])


def raising(error: BaseException):
    async def behaviour(_context):
        raise error

    return behaviour


@pytest.mark.parametrize("status", list(Status), ids=lambda s: s.name)
@STYLES
async def test_an_error_arrives_as_it_was_raised(status: Status, style: type[Worker]) -> None:
    raised = OctavoError(
        "zu wenig Öl", status=status, code="NO_OIL", hint="fülle nach", retry_after_s=1.25, param="oil"
    )
    async with serving(worker=style()) as served, channel_to(served.address) as channel:
        served.both_do(raising(raised))
        for call in (get_status(channel), read_all(stream(channel))):
            got = await failure(call)
            assert (got.status, got.code, got.message, got.hint) == (status, "NO_OIL", "zu wenig Öl", "fülle nach")
            assert (got.retry_after_s, got.param) == (1.25, "oil")


async def test_the_details_are_the_standard_ones() -> None:
    """As any other client would read them."""
    async with serving() as served, grpc.aio.insecure_channel(served.address) as channel:
        served.both_do(raising(errors.QuotaExceeded("full", hint="wait", retry_after_s=2)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get_status(channel)
    status = rpc_status.from_call(caught.value)
    info, retry = ErrorInfo(), RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain, dict(info.metadata)) == ("QUOTA_EXCEEDED", "octavo", {"hint": "wait"})
    assert retry.retry_delay.ToSeconds() == 2


async def test_long_and_odd_texts_still_arrive() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        served.both_do(raising(errors.InvalidArgument("é" * 100_000, hint="\ud800 lone", code="X")))
        got = await failure(get_status(channel))
        # Metadata beyond 8 KiB would be refused by chance.
        served.both_do(raising(errors.InvalidArgument("é" * 100_000, hint="ß" * 100_000, code="X")))
        longest = [await failure(get_status(channel)) for _ in range(50)]
    assert (got.code, got.hint) == ("X", "? lone")
    assert got.message.startswith("ééé")
    assert len(got.message) <= 1000
    assert {(each.code, each.message) for each in longest} == {("X", got.message)}


@STYLES
async def test_the_text_of_an_unhandled_exception_stays_in_the_log(style: type[Worker]) -> None:
    async with serving(worker=style()) as served, channel_to(served.address) as channel:
        served.both_do(raising(ValueError("password=hunter2")))
        for call in (lambda: get_status(channel), lambda: read_all(stream(channel))):
            with capture_logs() as logs:
                got = await failure(call())
            assert got.status is Status.INTERNAL
            assert "hunter2" not in got.message + got.hint
            assert "ValueError" not in got.message + got.hint
            (entry,) = [line for line in logs if line["event"] == "rpc.unhandled"]
            assert entry["error_id"] in got.hint


@STYLES
async def test_a_stray_cancellation_is_answered_at_once(style: type[Worker]) -> None:
    """grpc itself would leave the client waiting until its deadline (grpc#29248)."""
    async with serving(worker=style()) as served, channel_to(served.address) as channel:
        served.both_do(raising(asyncio.CancelledError()))
        async with asyncio.timeout(5):
            for call in (get_status(channel, timeout=60), read_all(stream(channel, timeout=60))):
                assert (await failure(call)).code == "INTERRUPTED"


@STYLES
async def test_an_abort_of_the_handler_passes_unchanged(style: type[Worker]) -> None:
    async def aborts(context):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "mine")

    async with serving(worker=style()) as served, channel_to(served.address) as channel:
        served.both_do(aborts)
        for call in (get_status(channel), read_all(stream(channel))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "mine")


MALFORMED = {
    "truncated length": b"\x0a\x7f",
    "unfinished varint": b"\x10\xff",
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())
@STYLES
async def test_a_request_that_cannot_be_decoded_is_the_callers_fault(payload: bytes, style: type[Worker]) -> None:
    async with serving(worker=style()) as served, channel_to(served.address) as channel:
        call = channel.unary_stream(STREAM)(payload, timeout=10)
        assert (await failure(read_all(call))).code == "MALFORMED_MESSAGE"
        got = await failure(channel.unary_unary(STATUS)(payload, timeout=10))
        assert (got.status, got.code) == (Status.INVALID_ARGUMENT, "MALFORMED_MESSAGE")


async def test_invalid_utf8_inside_a_string_is_the_callers_fault() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        got = await failure(read_all(channel.unary_stream(STREAM)(b"\x0a\x02\xff\xfe", timeout=10)))
        assert (got.status, got.code) == (Status.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    assert served.worker.num_active == 0


async def test_a_method_that_the_servicer_does_not_define_is_unimplemented() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        call = worker_pb2_grpc.WorkerServiceStub(channel).GetRecords(worker_pb2.GetRecordsRequest(), timeout=5)
        got = await failure(call)
        assert (got.status, got.code) == (Status.UNIMPLEMENTED, "UNIMPLEMENTED")


async def test_random_bytes_never_break_the_server() -> None:
    noise = random.Random(1)
    async with serving() as served, channel_to(served.address) as channel:
        for _ in range(100):
            call = channel.unary_stream(STREAM)(noise.randbytes(noise.randint(0, 40)), timeout=10)
            try:
                await read_all(call)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await get_status(channel)).id == "ok"


async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving() as served, channel_to(served.address) as channel:
        got = await failure(channel.unary_unary("/octavo.v1.WorkerService/Fly")(b"", timeout=10))
        assert (got.status, got.code) == (Status.UNIMPLEMENTED, "UNIMPLEMENTED")


async def test_an_error_of_the_transport_has_a_code_too() -> None:
    async with channel_to("127.0.0.1:1") as channel:
        got = await failure(get_status(channel, timeout=5))
    assert (got.status, got.code, got.hint, got.retry_after_s) == (Status.UNAVAILABLE, "UNAVAILABLE", "", None)


async def test_details_that_contradict_the_status_are_not_believed() -> None:
    """A proxy may rewrite the status and leave the details."""
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("grpc-status-details-bin", b"\x08\x05\x12\x01x")),
        details="proxy says no",
    )
    got = from_rpc_error(error)
    assert (got.status, got.code, got.message) == (Status.UNAVAILABLE, "UNAVAILABLE", "proxy says no")


async def test_a_message_over_the_limit_is_refused_and_one_below_it_passes() -> None:
    limit = 6 * 2**20
    wide = {"max_message_bytes": 2 * limit}
    async with serving(max_message_bytes=limit) as served, channel_to(served.address, **wide) as channel:
        big = worker_pb2.StreamRequest(job_id=string.ascii_letters * 110_000)  # 5.7 MB: above grpc's own default
        assert len(await read_all(channel.unary_stream(STREAM)(big.SerializeToString(), timeout=20))) == 1
        too_big = worker_pb2.StreamRequest(job_id="x" * (limit + 1))
        got = await failure(read_all(channel.unary_stream(STREAM)(too_big.SerializeToString(), timeout=20)))
        assert got.status is Status.RESOURCE_EXHAUSTED
        assert (await get_status(channel)).id == "ok"
