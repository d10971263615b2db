"""Requests that can never be served, through both rims: the same clear refusal, and no job."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from rims_world import DEMO, DEMO_CONTEXT, TINY, TINY_LIMIT, Bystander, Rims, refused, refused_http

from octavo import JobState

pytestmark = pytest.mark.e2e

# What is asked for, and gRPC's status and code; HTTP's are derived, or stand behind.
HELLO: dict[str, Any] = {"prompt": "Hello", "max_tokens": 2}
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "empty prompt": ({"prompt": ""}, "INVALID_ARGUMENT", "EMPTY_PROMPT", "prompt"),
    "no tokens": ({"token_ids": []}, "INVALID_ARGUMENT", "EMPTY_PROMPT", "token_ids"),
    "no messages": ({"messages": []}, "INVALID_ARGUMENT", "EMPTY_PROMPT", "messages"),
    "unknown role": (
        {"messages": [{"role": "robot", "content": "x"}]}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "messages[0].role",
    ),
    "max_tokens 0": ({**HELLO, "max_tokens": 0}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "max_tokens"),
    "max_tokens -1": ({**HELLO, "max_tokens": -1}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "max_tokens"),
    "temperature -1": ({**HELLO, "temperature": -1.0}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "temperature"),
    "top_p 0": ({**HELLO, "top_p": 0.0}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "top_p"),
    "top_p 1.5": ({**HELLO, "top_p": 1.5}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "top_p"),
    "top_k -2": ({**HELLO, "top_k": -2}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "top_k"),
    "priority 101": ({**HELLO, "priority": 101}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "priority"),
    "empty stop": ({**HELLO, "stop": [""]}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "stop"),
    "NUL in a name": ({**HELLO, "cache_salt": "a\0b"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "cache_salt"),
    "unknown model": ({**HELLO, "model": "gpt-9"}, "NOT_FOUND", "MODEL_NOT_FOUND", "model"),
    "no such token": ({"token_ids": [49152]}, "INVALID_ARGUMENT", "UNKNOWN_TOKEN", "token_ids"),
    "negative token": ({"token_ids": [-1]}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "token_ids"),
    "context": ({"token_ids": [100] * DEMO_CONTEXT}, "INVALID_ARGUMENT", "PROMPT_TOO_LONG", "prompt"),
    "beyond context": ({"token_ids": [100] * 9000}, "INVALID_ARGUMENT", "PROMPT_TOO_LONG", "prompt"),
    "pool": ({"token_ids": [5] * TINY_LIMIT, "model": TINY}, "INVALID_ARGUMENT", "PROMPT_TOO_LONG", "prompt"),
    "no time": ({**HELLO, "timeout_s": -1.0}, "INVALID_ARGUMENT", "INVALID_ARGUMENT", "timeout"),
}  # fmt: skip
HTTP_STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404}
HTTP_CODE = {"PROMPT_TOO_LONG": "context_length_exceeded"}
# Each rim names the field that its client wrote.
HTTP_NAMES = {"timeout": "timeout_s"}


def _post(rims: Rims, asked: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"model": DEMO, **asked, **more}
    if "token_ids" in body:
        body["prompt"] = body.pop("token_ids")
    return rims.post("/v1/chat/completions" if "messages" in body else "/v1/completions", body)


@pytest.mark.parametrize("name", BAD)
def test_both_rims_refuse_it_with_the_same_code_and_make_no_job(rims: Rims, tiny: str, name: str) -> None:
    asked, status, code, param = BAD[name]
    with rims.client() as client:
        newest = client.jobs.list(limit=1)
        grpc = refused(lambda: client.generate(**{"model": DEMO, **asked}))
        assert (grpc.status, grpc.code, grpc.param) == (status, code, param), grpc
        submitted = refused(lambda: client.submit(**{"model": DEMO, **asked}))
        assert submitted == grpc
        whole, stream = refused_http(_post(rims, asked)), refused_http(_post(rims, asked, stream=True))
        assert whole == stream
        assert (whole.status, whole.code) == (HTTP_STATUS[status], HTTP_CODE.get(code, code.lower()))
        name = HTTP_NAMES.get(param, param)
        assert (whole.message, whole.hint) == (grpc.message.replace(param, name, 1), grpc.hint)
        assert whole.param in (name, "prompt")
        assert client.jobs.list(limit=1) == newest


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["temperature", "top_p"])
def test_numbers_that_are_none_are_refused(rims: Rims, field: str, value: float) -> None:
    with rims.client() as client:
        grpc = refused(lambda: client.generate("Hello", max_tokens=2, **{field: value}))
    assert (grpc.status, grpc.code, grpc.param) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", field), grpc
    # JSON has no such numbers; what is too large for one is another matter.
    http = refused_http(rims.post("/v1/completions", {**HELLO, field: value}))
    assert (http.status, http.code) == (400, "malformed_json")
    http = refused_http(rims.post("/v1/completions", b'{"prompt": "Hello", "%s": 1e999}' % field.encode()))
    assert (http.status, http.code, http.param) == (400, "invalid_argument", field)


def test_the_hint_says_what_to_do(rims: Rims, tiny: str) -> None:
    with rims.client() as client:
        unknown = refused(lambda: client.generate("x", model="gpt-9"))
        assert DEMO in unknown.hint and TINY in unknown.hint
        nothing = refused(lambda: client.generate("x", max_tokens=0, model=DEMO))
        assert "echo" in nothing.hint
        pool = refused(lambda: client.generate(token_ids=[5] * TINY_LIMIT, model=TINY))
        assert f"{TINY_LIMIT} tokens" in pool.message and str(TINY_LIMIT - 1) in pool.message
        # Two models are served now.
        which = refused(lambda: client.generate("x"))
        assert which.code == "MODEL_NOT_FOUND" and DEMO in which.hint


def test_what_is_at_the_limits_is_accepted_and_right(rims: Rims, tiny: str) -> None:
    with rims.client() as client:
        one = client.generate("The capital of France is", model=DEMO, max_tokens=1, temperature=0.0)
        assert [len(c.token_ids) for c in one if c.token_ids] == [1] and one.text == " Paris"
        assert one.result is not None and one.result.finish_reason.name == "LENGTH"
        longest = client.generate(token_ids=[5] * (TINY_LIMIT - 1), model=TINY, ignore_eos=True, temperature=0.0)
        assert sum(len(c.token_ids) for c in longest) == 1
        assert longest.result is not None and longest.result.finish_reason.name == "LENGTH"
        echoed = client.generate("Hello", model=DEMO, max_tokens=0, echo=True)
        assert "".join(c.text for c in echoed) == "Hello" and echoed.token_ids == ()
    http = rims.post("/v1/completions", {"model": DEMO, "prompt": "Hello", "max_tokens": 0, "echo": True}).json()
    assert http["choices"][0]["text"] == "Hello" and http["usage"]["completion_tokens"] == 0
    limit = rims.post(
        "/v1/completions", {"model": TINY, "prompt": [5] * (TINY_LIMIT - 1), "max_tokens": 99, "ignore_eos": True}
    ).json()
    assert (limit["usage"]["completion_tokens"], limit["choices"][0]["finish_reason"]) == (1, "length")


@pytest.mark.slow
def test_the_longest_prompt_of_the_real_model_gets_its_one_token(rims: Rims) -> None:
    """Minutes on a busy machine: attention over 8,191 tokens."""
    with rims.client() as client:
        longest = client.generate(token_ids=[100] * (DEMO_CONTEXT - 1), model=DEMO, ignore_eos=True, temperature=0.0)
        assert sum(len(c.token_ids) for c in longest) == 1
        assert longest.result is not None and longest.result.usage.prompt_tokens == DEMO_CONTEXT - 1


def test_ten_megabytes_are_refused_and_a_stream_beside_them_goes_on(rims: Rims) -> None:
    huge = "a b " * 2_600_000
    with rims.client() as client, Bystander(rims) as bystander:
        for _ in range(3):
            grpc = refused(lambda: client.generate(huge, model=DEMO))
            assert (grpc.status, grpc.code, grpc.param) == ("INVALID_ARGUMENT", "PROMPT_TOO_LARGE", "prompt"), grpc
            bystander.more(2)
            chat = refused(lambda: client.submit(messages=[{"role": "user", "content": huge}], model=DEMO))
            assert (chat.code, chat.param) == ("PROMPT_TOO_LARGE", "messages")
            bystander.more(2)
            http = refused_http(rims.post("/v1/completions", {"prompt": huge}))
            assert (http.status, http.code) == (400, "context_length_exceeded")
            bystander.more(2)
        # Just below the bound on characters, and still far beyond the context: refused before any tokenising.
        grpc = refused(lambda: client.generate(huge[:900_000], model=DEMO))
        assert grpc.code == "PROMPT_TOO_LONG"
        bystander.more(2)
        print(f"longest gap of the stream beside: {bystander.longest_gap_s * 1000:.0f} ms")


def test_a_message_beyond_every_bound_is_refused(rims: Rims) -> None:
    huge = "a b " * 5_200_000
    with rims.client() as client:
        assert refused(lambda: client.generate(huge, model=DEMO)).status == "RESOURCE_EXHAUSTED"
    http = refused_http(rims.post("/v1/completions", {"prompt": huge}))
    assert (http.status, http.code) == (413, "body_too_large")


def test_the_time_that_a_job_may_take_ends_it(rims: Rims) -> None:
    long = {"prompt": "Hello", "model": DEMO, "max_tokens": 2000, "ignore_eos": True, "timeout_s": 0.3}
    with rims.client() as client:
        stream = client.generate(**long)
        told = refused(lambda: stream)
        assert (told.status, told.code) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
        submitted = client.submit(**long)
        job = client.wait(submitted.id, timeout_s=30)
        assert job.state is JobState.FAILED and job.failure is not None and job.failure.code == "DEADLINE_EXCEEDED"
        assert client.jobs.get(stream.job_id).state is JobState.FAILED
    http = refused_http(rims.post("/v1/completions", long))
    assert (http.status, http.code) == (504, "deadline_exceeded")


def test_an_idempotency_key_names_one_request(rims: Rims) -> None:
    asked = {"prompt": "Hello", "model": DEMO, "max_tokens": 2, "seed": 1, "idempotency_key": "once"}
    with rims.client() as client, rims.client(rims.other_key) as other:
        first, again = client.submit(**asked), client.submit(**asked)
        assert (again.id, first.created, again.created) == (first.id, True, False)
        reused = refused(lambda: client.submit(**{**asked, "prompt": "Goodbye"}))
        assert (reused.status, reused.code, reused.param) == (
            "ALREADY_EXISTS", "IDEMPOTENCY_KEY_REUSED", "idempotency_key",
        )  # fmt: skip
        # Keys of tenants do not meet.
        assert other.submit(**{**asked, "prompt": "Goodbye"}).created
        client.wait(first.id, timeout_s=60)
        assert client.submit(**asked).id == first.id
    body = {"prompt": "Goodbye", "model": DEMO, "max_tokens": 2}
    http = refused_http(rims.post("/v1/completions", body, headers={"Idempotency-Key": "once"}))
    assert (http.status, http.code) == (409, "idempotency_key_reused")
