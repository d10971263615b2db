"""Statuses become typed errors, and addresses and settings are read rightly."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

import octavo
from octavo.channel import call_metadata, channel_options, is_loopback, parse_addresses
from octavo.errors import DETAILS_KEY, from_status
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
