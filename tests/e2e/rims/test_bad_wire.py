"""Bytes that are no request at all: on the gRPC wire and in HTTP bodies."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket

import grpc
import pytest
from rims_world import DEMO, Bystander, Rims, refused, refused_http

from octavo.v1 import common_pb2, gateway_pb2, jobs_pb2

pytestmark = pytest.mark.e2e

GENERATE = "/octavo.v1.GenerationService/Generate"
METHODS = {
    GENERATE: gateway_pb2.GenerateRequest(generation=gateway_pb2.Generation(prompt="MARK")),
    "/octavo.v1.GenerationService/SubmitGeneration": gateway_pb2.SubmitGenerationRequest(
        generation=gateway_pb2.Generation(
            chat=gateway_pb2.ChatInput(messages=[gateway_pb2.ChatMessage(role="user", content="MARK")])
        )
    ),
    "/octavo.v1.GenerationService/ResumeGeneration": gateway_pb2.ResumeGenerationRequest(job_id="MARK"),
    "/octavo.v1.JobService/GetJob": jobs_pb2.GetJobRequest(id="MARK"),
    "/octavo.v1.JobService/WatchJob": jobs_pb2.WatchJobRequest(id="MARK"),
    "/octavo.v1.JobService/ListJobs": jobs_pb2.ListJobsRequest(model="MARK"),
}


@pytest.mark.parametrize("bad", [b"\xff\xfe\xfd\xfc", b"\xed\xa0\x80x", b"\xc0\x80xx"], ids=["ff", "surrogate", "long"])
@pytest.mark.parametrize("method", METHODS)
def test_invalid_utf8_inside_a_string_is_an_invalid_argument(rims: Rims, method: str, bad: bytes) -> None:
    data = METHODS[method].SerializeToString()
    assert data.count(b"MARK") == 1
    told = refused(lambda: rims.send_raw(method, data.replace(b"MARK", bad)))
    assert (told.status, told.code) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE") and "UTF-8" in told.hint


@pytest.mark.parametrize("data", [b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab"])
def test_bytes_that_are_no_message_are_an_invalid_argument(rims: Rims, data: bytes) -> None:
    told = refused(lambda: rims.send_raw(GENERATE, data))
    assert (told.status, told.code) == ("INVALID_ARGUMENT", "MALFORMED_MESSAGE")


def test_an_empty_message_is_a_request_without_a_prompt(rims: Rims) -> None:
    assert refused(lambda: rims.send_raw(GENERATE, b"")).code == "EMPTY_PROMPT"


def test_fields_of_a_later_version_are_passed_over(rims: Rims) -> None:
    generation = gateway_pb2.Generation(prompt="Hello", model=DEMO, sampling=common_pb2.Sampling(max_tokens=1))
    known = gateway_pb2.GenerateRequest(generation=generation).SerializeToString()
    events = rims.send_raw(GENERATE, known + b"\xf8\x07\x01")
    assert gateway_pb2.GenerateResponse.FromString(events[-1]).event.HasField("finished")


@pytest.mark.parametrize("method", ["/octavo.v1.GenerationService/Nothing", "/no.Service/Nothing"])
def test_methods_that_there_are_not_are_unimplemented(rims: Rims, method: str) -> None:
    assert refused(lambda: rims.send_raw(method, b"")).status == "UNIMPLEMENTED"


def test_a_deadline_that_has_passed_is_said_so(rims: Rims) -> None:
    generation = gateway_pb2.Generation(
        prompt="Hello", model=DEMO, sampling=common_pb2.Sampling(max_tokens=2000, ignore_eos=True)
    )
    data = gateway_pb2.GenerateRequest(generation=generation).SerializeToString()
    for timeout_s in (0.0001, 0.01, 0.4):
        told = refused(lambda timeout_s=timeout_s: rims.send_raw(GENERATE, data, timeout_s=timeout_s))
        assert told.status == "DEADLINE_EXCEEDED"
    # Its job ends with the call.
    rims.settled()


def test_values_that_enums_and_filters_do_not_have(rims: Rims) -> None:
    generation = gateway_pb2.Generation(prompt="x", model=DEMO, on_disconnect=9)  # pyright: ignore[reportArgumentType]
    data = gateway_pb2.GenerateRequest(generation=generation).SerializeToString()
    assert refused(lambda: rims.send_raw(GENERATE, data)).param == "on_disconnect"
    for request, param in (
        (jobs_pb2.ListJobsRequest(page_size=-1), "page_size"),
        (jobs_pb2.ListJobsRequest(page_token="x"), "page_token"),
        (jobs_pb2.ListJobsRequest(states=[77]), "states"),  # pyright: ignore[reportArgumentType]
        (jobs_pb2.ListJobsRequest(model="a\0b"), ""),
    ):
        told = refused(lambda r=request: rims.send_raw("/octavo.v1.JobService/ListJobs", r.SerializeToString()))
        assert (told.status, told.param) == ("INVALID_ARGUMENT", param)


def test_the_sdk_refuses_text_that_has_no_utf8_form(rims: Rims) -> None:
    with rims.client() as client:
        assert refused(lambda: client.submit("\ud800")).status == "INVALID_ARGUMENT"


BODIES = {
    "nothing": (b"", 400, "malformed_json", ""),
    "cut": (b'{"prompt": ', 400, "malformed_json", ""),
    "two": (b"{}{}", 400, "malformed_json", ""),
    "not utf-8": (b'{"prompt": "\xff"}', 400, "malformed_json", ""),
    "utf-16": ('{"prompt": "x"}'.encode("utf-16"), 400, "malformed_json", ""),
    "deep": (b"[" * 100_000, 400, "malformed_json", ""),
    "list": (b"[1]", 400, "invalid_argument", ""),
    "text": (b'"prompt"', 400, "invalid_argument", ""),
    "lone surrogate": (b'{"prompt": "\\ud800"}', 400, "invalid_argument", "prompt"),
    "lone low surrogate": (b'{"prompt": "x", "stop": "\\udc00"}', 400, "invalid_argument", "stop"),
    "surrogate model": (b'{"prompt": "x", "model": "\\udfff"}', 400, "invalid_argument", "model"),
    "surrogate name": (b'{"prompt": "x", "\\ud800": 1}', 400, "invalid_argument", ""),
    "unknown field": (b'{"prompt": "x", "temprature": 1}', 400, "unknown_parameter", "temprature"),
    "wrong type": (b'{"prompt": {"a": 1}}', 400, "invalid_argument", "prompt"),
    "number as text": (b'{"prompt": "x", "max_tokens": "4"}', 400, "invalid_argument", "max_tokens"),
    "huge number": (b'{"prompt": "x", "max_tokens": 1%s}' % (b"0" * 400), 400, "invalid_argument", "max_tokens"),
    "too many answers": (b'{"prompt": "x", "n": 1000}', 400, "invalid_argument", "n"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_refused(rims: Rims, name: str) -> None:
    body, status, code, param = BODIES[name]
    told = refused_http(rims.post("/v1/completions", body))
    assert (told.status, told.code, told.param) == (status, code, param)


def test_a_lone_surrogate_in_a_message_is_named(rims: Rims) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "\\ud83d"}]}'
    told = refused_http(rims.post("/v1/chat/completions", body))
    assert (told.code, told.param) == ("invalid_argument", "messages[1].content")


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/xml"])
def test_bodies_of_other_kinds_are_refused_with_the_kind_that_is_taken(rims: Rims, kind: str) -> None:
    told = refused_http(rims.post("/v1/completions", b"prompt=x&max_tokens=1", headers={"Content-Type": kind}))
    assert (told.status, told.code) == (400, "malformed_json") and "application/json" in told.hint


def test_compressed_bodies_are_refused_as_such(rims: Rims) -> None:
    body = gzip.compress(json.dumps({"prompt": "x"}).encode())
    told = refused_http(rims.post("/v1/completions", body, headers={"Content-Encoding": "gzip"}))
    assert (told.status, told.code) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405), ("POST", "/v1/nothing", 404), ("GET", "/", 404)],
)
def test_paths_and_methods_that_there_are_not(rims: Rims, method: str, path: str, status: int) -> None:
    with rims.web() as web:
        told = refused_http(web.request(method, path))
    assert (told.status, told.code) == (status, "unknown_url")


def test_a_connection_that_talks_something_else_harms_nobody(rims: Rims) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    with Bystander(rims) as bystander:
        for address in (rims.grpc, rims.http):
            host, port = address.rsplit(":", 1)
            for words in (b"\x00" * 1000, b"GET / HTTP/9.9\r\n\r\n", preface + b"\xff" * 100):
                with socket.create_connection((host, int(port)), timeout=5) as connection:
                    connection.sendall(words)
                    connection.settimeout(0.5)
                    with contextlib.suppress(OSError):
                        connection.recv(4096)
        bystander.more(5)


def test_health_and_reflection_are_open_and_health_knows_its_services(rims: Rims) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with rims.channel() as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="no.Service"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND  # pyright: ignore[reportAttributeAccessIssue]
