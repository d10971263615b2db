"""Log-probabilities from the engine to the clients, with the tokens that they belong to."""

from __future__ import annotations

import pytest
from answers_world import Platform, expected, text_of
from fakes.tiny_executor import logprob

# The tiny engine's vocabulary ends with the capitals.
PROMPT = "HELLO"
IDS = list(PROMPT.encode())


async def test_what_is_told_comes_with_the_tokens_and_stands_in_the_result(platform: Platform):
    stream = platform.sdk().generate(PROMPT, max_tokens=9, temperature=0, logprobs=0)
    told = []
    async for chunk in stream:
        assert len(chunk.logprobs) == len(chunk.token_ids)
        told += chunk.logprobs
    result = stream.result
    assert result is not None and tuple(told) == result.logprobs
    # The tiny engine's rank is the token itself.
    assert tuple(one.rank for one in told) == result.token_ids
    assert [one.text_offset for one in told] == list(range(9))
    assert (await platform.sdk().jobs.get(stream.job_id)).result == result


async def test_nothing_is_told_unasked(platform: Platform):
    result = await platform.sdk().generate(PROMPT, max_tokens=3, temperature=0).wait()
    assert (result.logprobs, result.prompt_logprobs) == ((), ())


@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_the_prompts_are_told_with_the_first_chunk_even_if_nothing_is_generated(platform: Platform, max_tokens):
    asked = {"max_tokens": max_tokens, "temperature": 0, "echo": True, "prompt_logprobs": 0}
    stream = platform.sdk().generate(PROMPT, **asked)
    chunks = [chunk async for chunk in stream]
    result = stream.result
    assert result is not None and result.prompt_logprobs == chunks[0].prompt_logprobs
    assert all(chunk.prompt_logprobs == () for chunk in chunks[1:])
    told = [one.logprob for one in result.prompt_logprobs]
    assert told[0] is None
    assert told[1:] == [pytest.approx(logprob(IDS[:n], IDS[n]), abs=1e-6) for n in range(1, len(IDS))]
    assert [one.text_offset for one in result.prompt_logprobs] == list(range(len(IDS)))
    assert list(result.token_ids) == expected(PROMPT, max_tokens) if max_tokens else result.token_ids == ()
    assert (result.text, result.finish_reason) == (PROMPT + text_of(result.token_ids), "length")


async def test_openais_completions_have_tokens_offsets_and_the_prompt_when_it_is_echoed(platform: Platform):
    client = platform.openai()
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 0, "echo": True}
    answer = (await client.completions.create(**asked)).choices[0]
    told = answer.logprobs
    assert told is not None and "".join(told.tokens) == answer.text == PROMPT + text_of(expected(PROMPT, 4))
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    assert len(told.token_logprobs) == len(told.top_logprobs) == len(IDS) + 4
    assert told.text_offset == list(range(len(IDS) + 4))
    assert told.top_logprobs[1] == {"E": told.token_logprobs[1]}
    tokens, offsets, text = [], [], ""
    async for chunk in await client.completions.create(**asked, stream=True):
        part = chunk.choices[0]
        text += part.text
        if part.logprobs is not None:
            tokens += part.logprobs.tokens
            offsets += part.logprobs.text_offset
    assert (tokens, offsets, text) == (told.tokens, told.text_offset, answer.text)


async def test_openais_chats_have_tokens_with_their_bytes(platform: Platform):
    client = platform.openai()
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "temperature": 0}
    answer = (await client.chat.completions.create(**asked, logprobs=True)).choices[0]
    assert answer.logprobs is not None and answer.logprobs.content is not None
    assert "".join(one.token for one in answer.logprobs.content) == answer.message.content
    assert all(bytes(one.bytes or ()).decode() == one.token for one in answer.logprobs.content)
    streamed = []
    async for chunk in await client.chat.completions.create(**asked, logprobs=True, stream=True):
        told = chunk.choices[0].logprobs
        streamed += told.content if told is not None and told.content else []
    assert streamed == answer.logprobs.content


async def test_vllms_prompt_log_probabilities_are_by_token_id(platform: Platform):
    client = platform.openai()
    extra = {"prompt_logprobs": 0}
    answer = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1, extra_body=extra)
    told = answer.choices[0].prompt_logprobs  # type: ignore[attr-defined]
    assert told[0] is None and [list(one) for one in told[1:]] == [[str(token)] for token in IDS[1:]]
    assert told[1]["69"]["decoded_token"] == "E"
