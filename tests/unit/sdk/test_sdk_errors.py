"""Statuses become typed errors, and addresses and settings are read rightly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

import octavo
from octavo.channel import call_metadata, channel_options, is_loopback, parse_addresses
from octavo.errors import DETAILS_KEY, from_rpc_error, from_status
from octavo.settings import resolve


def _rich(*details: object) -> list[tuple[str, bytes]]:
    status = status_pb2.Status()
    for detail in details:
        packed = Any()
        packed.Pack(detail)  # type: ignore[arg-type]
        status.details.append(packed)
    return [("x-other", b"1"), (DETAILS_KEY, status.SerializeToString())]


def test_the_rich_details_become_code_hint_and_time_to_wait() -> None:
    info = error_details_pb2.ErrorInfo(
        reason="QUOTA_EXCEEDED", domain="octavo", metadata={"hint": "wait a little", "param": "prompt"}
    )
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
    error = from_status("RESOURCE_EXHAUSTED", "too many", _rich(info, retry), job_id="j")
    assert isinstance(error, octavo.ResourceExhaustedError) and error.told
    assert (error.code, error.hint, error.param) == ("QUOTA_EXCEEDED", "wait a little", "prompt")
    assert (error.retry_after_s, error.job_id, str(error)) == (1.5, "j", "too many")


def test_a_status_of_the_transport_is_not_told_by_octavo() -> None:
    error = from_status("UNAVAILABLE", "failed to connect", [])
    assert isinstance(error, octavo.UnavailableError) and not error.told and "octavo up" in error.hint


def _heard(address: str, on_token: Callable[[], None] = lambda: None) -> octavo.OctavoError:
    """The error of a stream whose reader does something after a token."""
    with (
        grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        for _ in channel.unary_stream("/x.Y/Stream")(b"", timeout=10):
            on_token()
    return from_rpc_error(caught.value)


def test_only_where_no_connection_came_about_no_gateway_can_be_reached() -> None:
    gone = threading.Event()

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"token"
        gone.wait(10)

    method = {"Stream": grpc.unary_stream_rpc_method_handler(stream)}
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, handlers=[grpc.method_handlers_generic_handler("x.Y", method)])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        broke = _heard(address, lambda: server.stop(None).wait())
        gone.set()
    assert (broke.status, broke.told) == ("UNAVAILABLE", False)
    assert broke.message.startswith("the connection to the gateway broke") and "octavo status" in broke.hint
    refused = _heard(address)
    assert refused.message.startswith("no gateway can be reached: Connection refused") and "octavo up" in refused.hint


@pytest.mark.parametrize(
    ("said", "begin"),
    [
        (
            "errors resolving nosuch.invalid:5: [lookup failed: Domain name not found]",
            "no gateway can be reached",
        ),
        ("DNS resolution failed for nosuch.invalid:5: C-ares status is not ARES_SUCCESS", "no gateway can be reached"),
        ("failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", "no gateway can be reached"),
        ("Stream removed (Socket closed)", "the connection to the gateway broke: Stream removed"),
        ("", "the connection to the gateway broke"),
    ],
)
def test_what_grpc_says_of_a_connection_is_told_in_our_words(said: str, begin: str) -> None:
    assert from_status("UNAVAILABLE", said, []).message.startswith(begin)


def test_details_that_cannot_be_read_do_not_hide_the_error() -> None:
    error = from_status("NOT_FOUND", "", [(DETAILS_KEY, b"\xff\xff")])
    assert isinstance(error, octavo.NotFoundError) and str(error) == "not found"


def test_a_status_without_a_type_is_the_base_error() -> None:
    assert type(from_status("DATA_LOSS", "x", [])) is octavo.OctavoError


def test_addresses_are_host_and_port() -> None:
    assert parse_addresses("a:1, b:2,") == ("a:1", "b:2")
    assert parse_addresses(["[::1]:5"]) == ("[::1]:5",)
    for wrong in ("", "a", "a:", "a:x", "a:0", "a:70000"):
        with pytest.raises(octavo.InvalidArgumentError):
            parse_addresses(wrong)


def test_no_proxy_for_this_machine_and_no_early_ping() -> None:
    assert is_loopback("127.0.0.1:1") and is_loopback("localhost:1") and is_loopback("[::1]:1")
    assert not is_loopback("10.0.0.1:1") and not is_loopback("example.org:1")
    assert ("grpc.enable_http_proxy", 0) in channel_options("127.0.0.1:1")
    assert "grpc.enable_http_proxy" not in dict(channel_options("example.org:1"))
    assert dict(channel_options("127.0.0.1:1"))["grpc.keepalive_time_ms"] >= 20_000


def test_given_beats_environment_beats_default() -> None:
    environ = {"OCTAVO_ADDRESS": "h:1", "OCTAVO_API_KEY": "ok-env"}
    assert resolve(None, None, environ).addresses == ("h:1",)
    assert resolve("g:2", "ok-given", environ).api_key == "ok-given"
    assert resolve(None, None, {}).addresses == ("127.0.0.1:50051",)
    assert call_metadata("") == () and call_metadata("k", [("a", "b")]) == (("authorization", "Bearer k"), ("a", "b"))
