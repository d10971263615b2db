"""The `openai` package against a whole platform with a real model."""

from __future__ import annotations

import time
from pathlib import Path

import openai
import pytest
from octavo_process import Octavo
from rims_world import DEMO, DEMO_CONTEXT, Rims

from octavo import JobState

pytestmark = pytest.mark.e2e

CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]


@pytest.fixture
def client(rims: Rims):
    with rims.openai() as client:
        yield client


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    (demo,) = [model for model in client.models.list() if model.id == DEMO]
    assert demo.owned_by == "octavo" and client.models.retrieve(DEMO).id == DEMO


def test_a_chat_is_answered_and_its_job_can_be_fetched(client: openai.OpenAI, rims: Rims) -> None:
    raw = client.chat.completions.with_raw_response.create(model=DEMO, messages=CAPITAL, temperature=0, max_tokens=24)
    answer = raw.parse()
    text = answer.choices[0].message.content
    assert text is not None and "Tokyo" in text and answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None and answer.usage.total_tokens == (
        answer.usage.prompt_tokens + answer.usage.completion_tokens
    )
    with rims.web() as web:
        job = web.get(f"/v1/jobs/{raw.headers['x-octavo-job']}").json()
    assert (job["state"], job["text"]) == ("succeeded", text)
    assert job["usage"]["completion_tokens"] == answer.usage.completion_tokens == len(job["token_ids"])


def test_a_streamed_chat_gives_the_same_text_and_its_usage(client: openai.OpenAI) -> None:
    asked = {"model": DEMO, "messages": CAPITAL, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(texts) == whole.choices[0].message.content and len([t for t in texts if t]) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    # Another's prompt is served from the cache of the first.
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_completions_echo_and_stop(client: openai.OpenAI) -> None:
    prompt = "One, two, three, four,"
    plain = client.completions.create(model=DEMO, prompt=prompt, temperature=0, max_tokens=12)
    text = plain.choices[0].text
    assert text.startswith(" five")
    echoed = client.completions.create(model=DEMO, prompt=prompt, temperature=0, max_tokens=12, echo=True)
    assert echoed.choices[0].text == prompt + text
    only = client.completions.create(model=DEMO, prompt=prompt, max_tokens=0, echo=True)
    assert only.choices[0].text == prompt
    stopped = client.completions.create(model=DEMO, prompt=prompt, temperature=0, max_tokens=12, stop=[" six", "ne,"])
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].text == text.partition(" six")[0]
    pieces = client.completions.create(
        model=DEMO, prompt=prompt, temperature=0, max_tokens=12, stop=" six", stream=True
    )
    assert "".join(c.choices[0].text for c in pieces if c.choices) == stopped.choices[0].text
    ids = client.completions.create(model=DEMO, prompt=[100, 200, 300], max_tokens=2)
    assert ids.usage is not None and ids.usage.prompt_tokens == 3


def test_equal_seeds_give_equal_texts(client: openai.OpenAI) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model=DEMO, prompt="Once upon a time", max_tokens=24, temperature=1, seed=seed
        )
        return answer.choices[0].text

    first = ask(7)
    assert ask(7) == first and ask(8) != first


def test_errors_have_the_packages_own_classes(client: openai.OpenAI, rims: Rims, one_job_tenant: str) -> None:
    with rims.openai("ok-wrong") as stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=CAPITAL)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=DEMO, messages=CAPITAL, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=DEMO, prompt=[100] * DEMO_CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    with rims.openai(one_job_tenant) as small:
        first = small.chat.completions.create(model=DEMO, messages=CAPITAL, max_tokens=2, stream=True)
        with pytest.raises(openai.RateLimitError) as caught:
            small.chat.completions.create(model=DEMO, messages=CAPITAL, max_tokens=2)
        assert caught.value.code == "rate_limit_exceeded" and int(caught.value.response.headers["retry-after"]) >= 1
        first.close()
    rims.settled()


def test_closing_a_stream_ends_its_job_and_frees_its_blocks(client: openai.OpenAI, rims: Rims) -> None:
    stream = client.chat.completions.create(
        model=DEMO, messages=CAPITAL, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    job_id = stream.response.headers["x-octavo-job"]
    for _ in range(5):
        next(stream)
    stream.close()
    with rims.client() as sdk:
        end = time.monotonic() + 20
        while not (job := sdk.jobs.get(job_id)).state.ended:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert job.state is JobState.CANCELLED
    rims.settled()


def test_the_tokenizer_that_load_generators_want_can_be_taken_out(platform: Octavo, rims: Rims, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tmp_path / "tokenizer"
    assert platform.ok("models", "export-tokenizer", str(folder), "--model", DEMO).strip() == str(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The quick brown fox, 1234 times."
    with rims.client() as client:
        plain = client.generate(text, model=DEMO, max_tokens=1)
        list(plain)
        chat = client.generate(messages=CAPITAL, model=DEMO, max_tokens=1)
        list(chat)
    assert plain.result is not None and plain.result.usage.prompt_tokens == len(tokenizer.encode(text))
    ids = tokenizer.apply_chat_template(CAPITAL, add_generation_prompt=True, return_dict=False)
    assert chat.result is not None and chat.result.usage.prompt_tokens == len(ids)
    refused = platform.run("models", "export-tokenizer", str(folder), "--model", "gpt-9")
    assert refused.returncode == 1 and "gpt-9" in refused.stderr and DEMO in refused.stderr
