"""Errors name the field that the client wrote, by OpenAI's path: every parameter with a value that it cannot have."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from http_world import HttpWorld

from octavo_common.jobs.spec import JobFailure
from octavo_gateway.openai.bodies import ChatBody, CompletionBody

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETION: {"prompt": "hi"},
}
MESSAGE = {"role": "user", "content": "hi"}
# Field: what it cannot be, the path that the error names where that is not the field, and what goes with it.
Bad = tuple[Any, str, dict[str, Any]]


def bad(value: Any, path: str = "", **more: Any) -> Bad:
    return value, path, more


COMMON: dict[str, list[Bad]] = {
    "model": [bad(3), bad("x" * 300), bad("a\0")],
    "max_tokens": [bad("3"), bad(-1), bad(2**40)],
    "temperature": [bad("hot"), bad(-0.5), bad(101)],
    "top_p": [bad("x"), bad(0), bad(1.5)],
    "top_k": [bad(0.5), bad(-2)],
    "seed": [bad(1.5), bad(2**70)],
    "stop": [bad(5), bad([""]), bad(["x"] * 17), bad(["a", 5], "stop[1]")],
    "stop_token_ids": [bad("x"), bad([-1]), bad([10**6]), bad([1, "a"], "stop_token_ids[1]")],
    "ignore_eos": [bad("yes"), bad(True, response_format={"type": "json_object"})],
    "presence_penalty": [bad("x"), bad(3)],
    "frequency_penalty": [bad("x"), bad(-3)],
    "logit_bias": [bad([1]), bad({"x": 1}), bad({"5": 101}), bad({"5": "a"}, "logit_bias.5"), bad({"999": 1})],
    "min_p": [bad("x"), bad(2)],
    "repetition_penalty": [bad("x"), bad(0)],
    "bad_words": [bad("x"), bad([""]), bad(["a", 5], "bad_words[1]")],
    "allowed_token_ids": [bad(5), bad([-1]), bad([999])],
    "min_tokens": [bad("x"), bad(-1), bad(9, max_tokens=5)],
    "include_stop_str_in_output": [bad("yes")],
    "n": [bad(True), bad(0), bad(17), bad(3, use_beam_search=True, best_of=2)],
    "best_of": [bad("x"), bad(1, n=2), bad(17, use_beam_search=True)],
    "prompt_logprobs": [bad("x"), bad(21)],
    "logprobs_mode": [bad("cooked")],
    "use_beam_search": [bad("yes")],
    "length_penalty": [bad(2.0), bad("x", use_beam_search=True), bad(11, use_beam_search=True)],
    "early_stopping": [bad(True), bad("always", use_beam_search=True)],
    "response_format": [
        bad("json"),
        bad({}, "response_format.type"),
        bad({"type": "xml"}, "response_format.type"),
        bad({"type": "json_schema"}, "response_format.json_schema"),
        bad({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        bad({"type": "json_schema", "json_schema": {"schema": 5}}, "response_format.json_schema.schema"),
        bad(
            {"type": "json_schema", "json_schema": {"schema": {"a": "x" * 70_000}}},
            "response_format.json_schema.schema",
        ),
    ],
    "structured_outputs": [
        bad("x"),
        bad({}),
        bad({"regex": 5}, "structured_outputs.regex"),
        bad({"regex": " "}, "structured_outputs.regex"),
        bad({"choice": []}, "structured_outputs.choice"),
        bad({"choice": ["a", "a"]}, "structured_outputs.choice"),
        bad({"grammar": "\0"}, "structured_outputs.grammar"),
        bad({"json": "{"}, "structured_outputs.json"),
        bad({"structural_tag": "x"}, "structured_outputs.structural_tag"),
        bad({"json_object": "yes"}, "structured_outputs.json_object"),
    ],
    "guided_json": [bad(5), bad("{"), bad("[]")],
    "guided_regex": [bad(5), bad("")],
    "guided_choice": [bad("x"), bad([])],
    "guided_grammar": [bad(5), bad("a", response_format={"type": "json_object"})],
    "stream": [bad("yes")],
    "stream_options": [
        bad("x", stream=True),
        bad({}),
        bad({"include_usage": "x"}, "stream_options.include_usage", stream=True),
        bad({"usage": True}, "stream_options.usage", stream=True),
    ],
    "priority": [bad("x"), bad(101)],
    "timeout_s": [bad("x"), bad(0)],
    "on_disconnect": [bad("stay")],
    "fair_key": [bad(5), bad("x" * 300)],
    "cache_salt": [bad(5), bad("a\0")],
}
OF_CHATS: dict[str, list[Bad]] = {
    "messages": [
        bad("hi"),
        bad([]),
        bad(["hi"], "messages[0]"),
        bad([MESSAGE, {"content": "hi"}], "messages[1].role"),
        bad([{"role": "king", "content": "hi"}], "messages[0].role"),
        bad([{"role": "user", "content": 5}], "messages[0].content"),
        bad([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        bad([MESSAGE, {"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[1].content[0].text"),
        bad([{"role": "user", "content": "\ud800"}], "messages[0].content"),
        bad([{"role": "user", "content": "x" * 200}]),
    ],
    "max_completion_tokens": [bad("3"), bad(0), bad(-1), bad(3, max_tokens=4), bad(2**40)],
    "logprobs": [bad(5)],
    "top_logprobs": [bad("x", logprobs=True), bad(21, logprobs=True), bad(3)],
}
OF_COMPLETIONS: dict[str, list[Bad]] = {
    "prompt": [bad(5), bad(""), bad([]), bad(None), bad([-1]), bad([999]), bad("x" * 200), bad("\ud800")],
    "echo": [bad("yes")],
    "logprobs": [bad(True), bad(21), bad(21, echo=True)],
}
BY_PATH = {CHAT: COMMON | OF_CHATS, COMPLETION: COMMON | OF_COMPLETIONS}


def test_the_tables_have_every_field():
    assert set(BY_PATH[CHAT]) == set(ChatBody.model_fields)
    assert set(BY_PATH[COMPLETION]) == set(CompletionBody.model_fields)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_an_error_names_the_field_as_the_client_wrote_it(http: HttpWorld, path):
    wrong = []
    client = http.raw()
    for name, values in BY_PATH[path].items():
        for value, at, more in values:
            # By json's own escapes: lone surrogates have no other form.
            answer = await client.post(path, content=json.dumps({**BASE[path], **more, name: value}))
            told = answer.json().get("error", {})
            if (answer.status_code, told.get("param")) != (400, at or name):
                wrong.append((name, str(value)[:40], answer.status_code, told))
    assert wrong == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex"),
        ({"extra_body": {"guided_grammar": "("}}, "guided_grammar"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_worker_refuses_is_named_too(http: HttpWorld, fields, path, stream):
    create = http.openai().chat.completions.create

    async def ask() -> None:
        answer = await create(model="tiny", messages=[MESSAGE], stream=stream, **fields)
        if stream:
            async for _ in answer:
                pass

    asking = asyncio.ensure_future(ask())
    job_id = await http.newest_job()
    await http.worker.take(job_id)
    failure = JobFailure(code="INVALID_GRAMMAR", message="bad", status="INVALID_ARGUMENT", param="structured_output")
    await http.worker.fail(job_id, failure, 3)
    with pytest.raises(openai.APIError) as caught:
        await asking
    assert (caught.value.param, caught.value.code) == (path, "invalid_grammar")


async def test_a_key_that_is_too_long_is_named_by_its_header(http: HttpWorld):
    headers = {"Idempotency-Key": "k" * 300}
    answer = await http.raw().post(COMPLETION, json=BASE[COMPLETION], headers=headers)
    assert answer.json()["error"]["param"] == "Idempotency-Key"
    assert "idempotency_key" not in answer.text


async def test_messages_speak_of_the_clients_names_too(http: HttpWorld):
    for fields, name in (({"max_completion_tokens": 0}, "max_completion_tokens"), ({"timeout_s": 0}, "timeout_s")):
        answer = await http.raw().post(CHAT, json={**BASE[CHAT], **fields})
        assert answer.json()["error"]["message"].startswith(name)
