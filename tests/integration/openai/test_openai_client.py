"""The `openai` package against a real gateway over a real database."""

from __future__ import annotations

import asyncio

import openai
import pytest
from http_world import HttpWorld

from octavo_common.jobs.model import TenantLimits
from octavo_common.jobs.spec import GenerationSpec

HELLO = [{"role": "user", "content": "hello"}]
PROMPT_TOKENS = len("user: hello\nassistant:")


async def test_a_chat_is_answered_with_text_finish_reason_and_usage(http: HttpWorld):
    client = http.openai()
    call = client.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, max_tokens=10, temperature=0)
    raw = await http.served(call)
    answer = raw.parse()
    assert answer.choices[0].message.content == "ABCDEFGHIJ" and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length" and answer.object == "chat.completion"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, 10)
    assert answer.usage.total_tokens == PROMPT_TOKENS + 10
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.id == f"chatcmpl-{raw.headers['x-octavo-job']}"


async def test_a_chat_streams_its_text_in_pieces_and_its_usage_at_the_end(http: HttpWorld):
    stream = await http.openai().chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=10, stream=True, stream_options={"include_usage": True}
    )
    job_id = await http.newest_job()
    await http.worker.take(job_id)
    chunks, num_read = [], 0
    await http.worker.release_tokens(job_id, 2)
    async for chunk in stream:
        chunks.append(chunk)
        if chunk.choices and chunk.choices[0].delta.content:
            # The next tokens come when these were read: a reader that is behind would get several steps in one piece.
            num_read += 1
            if num_read < 3:
                await http.worker.release_tokens(job_id, 2)
            elif num_read == 3:
                assert await http.worker.finish(job_id)
    with_choice, last = chunks[:-1], chunks[-1]
    assert with_choice[0].choices[0].delta.role == "assistant"
    texts = [c.choices[0].delta.content or "" for c in with_choice]
    assert "".join(texts) == "ABCDEFGHIJ" and len([t for t in texts if t]) >= 3
    assert [c.choices[0].finish_reason for c in with_choice] == [None] * (len(with_choice) - 1) + ["length"]
    assert all(c.usage is None for c in with_choice) and last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (PROMPT_TOKENS, 10)
    assert len({c.id for c in chunks}) == 1 and chunks[0].object == "chat.completion.chunk"


async def test_without_include_usage_a_stream_has_none(http: HttpWorld):
    stream = await http.openai().completions.create(model="tiny", prompt="hi", max_tokens=4, stream=True)
    serving = asyncio.ensure_future(http.serve_one())
    chunks = [chunk async for chunk in stream]
    await serving
    assert "".join(c.choices[0].text for c in chunks) == "ABCD"
    assert chunks[-1].choices[0].finish_reason == "length" and all(c.usage is None for c in chunks)


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
async def test_a_completion_takes_text_or_token_ids(http: HttpWorld, prompt):
    answer = await http.served(http.openai().completions.create(model="tiny", prompt=prompt, max_tokens=5))
    assert answer.choices[0].text == "ABCDE" and answer.usage.prompt_tokens == 2
    assert answer.object == "text_completion"


async def test_a_completion_without_max_tokens_has_sixteen(http: HttpWorld):
    answer = await http.served(http.openai().completions.create(model="tiny", prompt="hi"))
    assert answer.usage.completion_tokens == 16


async def test_content_in_parts_is_joined_by_line_breaks(http: HttpWorld):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    answer = await http.served(http.openai().chat.completions.create(model="tiny", messages=messages, max_tokens=1))
    assert answer.usage.prompt_tokens == len("system: be brief\nuser: hel\nlo\nassistant:")


async def test_sampling_parameters_reach_the_job(http: HttpWorld):
    client = http.openai()
    call = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=3,
        temperature=0.5,
        top_p=0.9,
        seed=42,
        stop=["x", "yy"],
        extra_body={"top_k": 7, "ignore_eos": True, "stop_token_ids": [9], "priority": 3},
    )
    answer = await http.served(call)
    job = await http.world.job(answer.id.removeprefix("chatcmpl-"))
    asked = {k: job.payload[k] for k in ("temperature", "top_p", "seed", "top_k", "ignore_eos", "max_tokens")}
    assert asked == {"temperature": 0.5, "top_p": 0.9, "seed": 42, "top_k": 7, "ignore_eos": True, "max_tokens": 3}
    assert list(job.payload["stop"]) == ["x", "yy"] and list(job.payload["stop_token_ids"]) == [9]
    assert job.priority == 3


async def test_what_steers_the_choice_of_tokens_reaches_the_job(http: HttpWorld):
    call = http.openai().completions.create(
        model="tiny",
        prompt="hi",
        max_tokens=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"70": 5, "65": -100},
        extra_body={
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "bad_words": ["no", "  yes"],
            "allowed_token_ids": [66, 65],
            "min_tokens": 2,
            "include_stop_str_in_output": True,
        },
    )
    answer = await http.served(call)
    spec = GenerationSpec.from_json(dict((await http.world.job(answer.id.removeprefix("cmpl-"))).payload))
    assert (spec.presence_penalty, spec.frequency_penalty, spec.min_p, spec.repetition_penalty) == (0.5, -0.5, 0.1, 1.2)
    assert (spec.logit_bias, spec.allowed_token_ids) == (((65, -100.0), (70, 5.0)), (65, 66))
    assert spec.bad_words == tuple(tuple(text.encode()) for text in ("no", " no", "yes", " yes"))
    assert (spec.min_tokens, spec.include_stop) == (2, True)
    with pytest.raises(openai.BadRequestError) as caught:
        await http.openai().completions.create(model="tiny", prompt="hi", logit_bias={"257": 1})
    assert (caught.value.code, caught.value.param) == ("unknown_token", "logit_bias")


async def test_ignored_parameters_are_named(http: HttpWorld):
    messages = [{"role": "user", "content": "hello", "name": "bob"}]
    raw = await http.served(
        http.openai().chat.completions.with_raw_response.create(
            model="tiny", messages=messages, max_tokens=1, user="u", metadata={"a": "b"}, n=1, presence_penalty=0
        )
    )
    assert set(raw.headers["x-octavo-ignored"].split(", ")) == {"user", "metadata", "messages.name"}


async def test_models_are_listed_and_found(http: HttpWorld):
    client = http.openai()
    assert [m.id async for m in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"


async def test_a_wrong_key_is_an_authentication_error(http: HttpWorld):
    with pytest.raises(openai.AuthenticationError) as caught:
        await http.openai(key="ok-wrong").models.list()
    assert caught.value.code == "invalid_api_key" and caught.value.type == "authentication_error"


async def test_a_full_queue_is_a_rate_limit_error_with_a_time_to_wait(http: HttpWorld):
    await http.world.tenants.set_limits("acme", TenantLimits(max_queued=1))
    client = http.openai()
    first = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2, stream=True)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
    assert caught.value.code == "rate_limit_exceeded" and int(caught.value.response.headers["retry-after"]) >= 1
    await first.close()


async def test_a_prompt_beyond_the_context_has_the_code_that_clients_know(http: HttpWorld):
    with pytest.raises(openai.BadRequestError) as caught:
        await http.openai().completions.create(model="tiny", prompt="x" * 128, max_tokens=2)
    assert caught.value.code == "context_length_exceeded"


async def test_a_job_that_is_cancelled_ends_its_stream_with_an_error(http: HttpWorld):
    client = http.openai()
    stream = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=9, stream=True)
    job_id = await http.newest_job()
    assert (await http.raw().post(f"/v1/jobs/{job_id}/cancel")).json()["state"] == "cancelled"
    with pytest.raises(openai.APIError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code == "cancelled"


async def test_the_same_idempotency_key_gives_the_same_answer_and_another_request_is_refused(http: HttpWorld):
    client = http.openai()
    headers = {"Idempotency-Key": "once"}

    def ask(prompt: str):
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=3, extra_headers=headers)

    first = await http.served(ask("a"))
    again = await ask("a")
    assert (again.id, again.choices[0].text) == (first.id, "ABC")
    with pytest.raises(openai.ConflictError) as caught:
        await ask("b")
    assert caught.value.code == "idempotency_key_reused"
