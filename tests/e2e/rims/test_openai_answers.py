"""Log-probabilities, several answers and structure by the `openai` package, against a whole platform."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from rims_world import DEMO, Rims

pytestmark = pytest.mark.e2e

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"enum": ["Paris", "London"]}, "is_large": {"type": "boolean"}},
    "required": ["capital", "is_large"],
    "additionalProperties": False,
}


@pytest.fixture
def client(rims: Rims):
    with rims.openai() as client:
        yield client


def test_log_probabilities_come_with_their_tokens_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": DEMO, "messages": CAPITAL, "temperature": 0, "max_tokens": 6}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    assert "".join(one.token for one in whole.logprobs.content) == whole.message.content
    for one in whole.logprobs.content:
        best, second = one.top_logprobs
        assert (best.token, best.logprob) == (one.token, one.logprob) and second.logprob <= one.logprob <= 0
    streamed = []
    for chunk in client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, stream=True):
        told = chunk.choices[0].logprobs
        streamed += told.content if told is not None and told.content else []
    assert [one.token for one in streamed] == [one.token for one in whole.logprobs.content]
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in whole.logprobs.content], abs=1e-2)


def test_a_harness_can_score_a_prompt(client: openai.OpenAI) -> None:
    """Two ways to go on: the likelier one has the larger sum, as evaluation harnesses ask for it."""

    def score(prompt: str) -> float:
        answer = client.completions.create(model=DEMO, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
        told = answer.choices[0].logprobs
        assert told is not None and told.tokens is not None and told.token_logprobs is not None
        assert "".join(told.tokens) == prompt == answer.choices[0].text
        return sum(logprob for logprob in told.token_logprobs if logprob is not None)

    beginning = "One, two, three, four,"
    assert score(f"{beginning} five") > score(f"{beginning} twelve")


def test_several_answers_differ_and_the_first_is_that_of_one(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": DEMO, "prompt": "Once upon a time", "max_tokens": 16, "temperature": 1, "seed": 7}
    one = client.completions.create(**asked)
    several = client.completions.create(**asked, n=3)
    texts = [choice.text for choice in several.choices]
    assert texts[0] == one.choices[0].text and len(set(texts)) == 3
    parts = ["", "", ""]
    for chunk in client.completions.create(**asked, n=3, stream=True):
        parts[chunk.choices[0].index] += chunk.choices[0].text
    assert parts == texts


def test_an_answer_follows_its_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=DEMO,
        messages=CAPITAL,
        max_tokens=60,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "capital", "schema": SCHEMA}},
    )
    found = json.loads(answer.choices[0].message.content or "")
    assert found["capital"] in ("Paris", "London") and isinstance(found["is_large"], bool)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=DEMO, prompt="x", max_tokens=3, extra_body={"guided_regex": "(("})
    assert caught.value.code == "invalid_grammar"
