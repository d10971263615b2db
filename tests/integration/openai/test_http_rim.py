"""What HTTP brings beside the happy path: silence, clients that leave, bad bodies, jobs."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from http_world import HttpWorld, data_of, eventually, sse

from octavo_gateway.openai.app import make_app

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
COMPLETION = {"model": "tiny", "prompt": "hi", "max_tokens": 4}


async def test_silence_brings_comments_and_the_job_is_named_at_once(http: HttpWorld):
    async with http.raw().stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = sse(answer.aiter_lines())
        assert data_of(await anext(lines))["choices"][0]["delta"]["role"] == "assistant"
        assert [await anext(lines), await anext(lines)] == [": keep-alive"] * 2
        assert answer.headers["x-octavo-job"] == str(await http.serve_one())
        rest = [line async for line in lines if not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    assert "".join(data_of(line)["choices"][0]["delta"].get("content", "") for line in rest[:-1]) == "ABCD"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["queued", "running"])
async def test_a_client_that_leaves_cancels_its_job_promptly(http: HttpWorld, stream, stage):
    call = asyncio.ensure_future(http.raw().post("/v1/chat/completions", json={**CHAT, "stream": stream}))
    job_id = await http.newest_job()
    if stage == "running":
        await http.worker.take(job_id)
        await http.worker.release_tokens(job_id, 1)
        await asyncio.sleep(0.05)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    async def cancelling() -> bool:
        job = await http.world.job(job_id)
        return job.cancel_requested or job.state.value == "cancelled"

    await eventually(cancelling, timeout_s=2.0)
    await eventually(lambda: _no_readers(http), timeout_s=2.0)


async def _no_readers(http: HttpWorld) -> bool:
    return http.gateway.gateway.hub.num_readers == 0


async def test_a_client_that_detaches_may_leave_and_fetch_the_answer_from_the_job(http: HttpWorld):
    body = {**CHAT, "stream": True, "on_disconnect": "detach"}
    async with http.raw().stream("POST", "/v1/chat/completions", json=body) as answer:
        job_id = answer.headers["x-octavo-job"]
    waiting = (await http.raw().get(f"/v1/jobs/{job_id}")).json()
    assert (waiting["state"], waiting["text"], waiting["usage"]) == ("queued", None, None)
    assert str(await http.serve_one()) == job_id
    await http.world.until(job_id, "succeeded")
    job = (await http.raw().get(f"/v1/jobs/{job_id}")).json()
    assert (job["state"], job["text"], job["finish_reason"]) == ("succeeded", "ABCD", "length")
    assert job["usage"]["completion_tokens"] == 4 and job["ended_at"] >= job["created_at"] and job["error"] is None


async def test_jobs_of_others_and_ids_that_are_none_are_not_found(http: HttpWorld):
    serving = asyncio.ensure_future(http.serve_one())
    answer = await http.raw().post("/v1/completions", json=COMPLETION)
    await serving
    job_id = answer.headers["x-octavo-job"]
    other = http.raw(await http.world.keys.create("other", "user", "test"))
    for client, path in [(other, job_id), (http.raw(), "nonsense"), (http.raw(), "0" * 32)]:
        for method, suffix in [("GET", ""), ("POST", "/cancel")]:
            refused = await client.request(method, f"/v1/jobs/{path}{suffix}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "job_not_found")
    # A job that has ended stays as it is.
    assert (await http.raw().post(f"/v1/jobs/{job_id}/cancel")).json()["state"] == "succeeded"


BAD = {
    "no body": (b"", 400, "malformed_json", None),
    "cut": (b'{"model": ', 400, "malformed_json", None),
    "not utf-8": (b'{"prompt": "\xff"}', 400, "malformed_json", None),
    "nan": (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400, "malformed_json", None),
    "infinity": (b'{"model": "tiny", "prompt": "a", "temperature": 1e999}', 400, "invalid_argument", "temperature"),
    "deep": (b"[" * 100_000, 400, "malformed_json", None),
    "digits": (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", 400, "malformed_json", None),
    "list": (b"[]", 400, "invalid_argument", None),
    "surrogate": (b'{"prompt": "\\ud800"}', 400, "invalid_argument", "prompt"),
    "surrogate name": (b'{"prompt": "a", "\\ud800": 1}', 400, "invalid_argument", None),
    "too large": (b'{"prompt": "' + b"x" * 300_000 + b'"}', 413, "body_too_large", None),
    "no prompt": (b"{}", 400, "empty_prompt", "prompt"),
    "empty prompt": (b'{"prompt": ""}', 400, "empty_prompt", "prompt"),
    "many prompts": (b'{"prompt": ["a"' + b', "b"' * 128 + b"]}", 400, "invalid_argument", "prompt"),
    "wrong type": (b'{"prompt": "a", "max_tokens": "4"}', 400, "invalid_argument", "max_tokens"),
    "no tokens": (b'{"prompt": "a", "max_tokens": 0}', 400, "invalid_argument", "max_tokens"),
    "hot": (b'{"prompt": "a", "temperature": 1e50}', 400, "invalid_argument", "temperature"),
    "negative": (b'{"prompt": "a", "temperature": -1}', 400, "invalid_argument", "temperature"),
    "top_p": (b'{"prompt": "a", "top_p": 0}', 400, "invalid_argument", "top_p"),
    "n": (b'{"prompt": "a", "n": 17}', 400, "invalid_argument", "n"),
    "logprobs": (b'{"prompt": "a", "logprobs": 21}', 400, "invalid_argument", "logprobs"),
    "best_of": (b'{"prompt": "a", "n": 3, "best_of": 2}', 400, "invalid_argument", "best_of"),
    "unknown": (b'{"prompt": "a", "temprature": 1}', 400, "unknown_parameter", "temprature"),
    "model": (b'{"prompt": "a", "model": "other"}', 404, "model_not_found", "model"),
    "vocabulary": (b'{"prompt": [5000]}', 400, "unknown_token", "prompt"),
}


@pytest.mark.parametrize("name", sorted(BAD))
async def test_a_bad_body_gets_a_clear_error_and_makes_no_job(http: HttpWorld, name):
    body, status, code, param = BAD[name]
    answer = await http.raw().post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert error["message"] and error["type"] == "invalid_request_error"
    assert await http.worker.placement.queue(10) == []


@pytest.mark.parametrize(
    ("headers", "status", "code", "says"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, 400, "malformed_json", "application/json"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415, "unsupported_encoding", "Encoding"),
    ],
)
async def test_bodies_of_other_kinds_are_refused_with_a_hint(http: HttpWorld, headers, status, code, says):
    answer = await http.raw().post("/v1/completions", content=b"prompt=x", headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code) and says in error["hint"]


async def test_a_body_that_grows_beyond_the_limit_without_saying_so_is_refused(http: HttpWorld):
    async def parts():
        for _ in range(100):
            yield b"x" * 10_000

    answer = await http.raw().post("/v1/completions", content=parts())
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


async def test_no_answer_invites_a_page_of_another_origin(http: HttpWorld):
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET", "POST"):
        answer = await http.raw().request(method, "/v1/chat/completions", headers=headers)
        assert answer.status_code in (400, 405)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/jobs/x/cancel"])
async def test_no_key_is_401_before_the_body_is_looked_at(http: HttpWorld, path):
    answer = await http.raw(key="").post(path, content=b"{")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_unknown_paths_and_methods_have_errors_of_the_same_form(http: HttpWorld):
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/", 404)]:
        answer = await http.raw().request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, "unknown_url")


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_health_says_what_the_gateway_says(http: HttpWorld, ready: bool, status: int):
    app = make_app(http.gateway.gateway.api, health=lambda: ready)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.get("/health")).status_code == status


async def test_health_and_metrics_need_no_key(http: HttpWorld):
    open_client = http.raw(key="")
    assert (await open_client.get("/health")).json() == {"status": "ok"}
    metrics = await open_client.get("/metrics")
    assert metrics.status_code == 200 and b"# HELP" in metrics.content


async def test_the_usage_so_far_comes_with_every_chunk_when_asked_for(http: HttpWorld):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**COMPLETION, "stream": True, "stream_options": options}
    async with http.raw().stream("POST", "/v1/completions", json=body) as answer:
        serving = asyncio.ensure_future(http.serve_one())
        lines = [line async for line in sse(answer.aiter_lines()) if line.startswith("data: {")]
        await serving
    counts = [json.loads(line[6:])["usage"]["completion_tokens"] for line in lines]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 4
