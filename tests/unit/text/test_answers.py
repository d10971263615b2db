"""Where the text of an answer begins, for every kind of tokenizer; the oracle is the library's decode of everything."""

from __future__ import annotations

import dataclasses

import pytest

from octavo_common.jobs.spec import GenerationSpec
from octavo_common.text.answers import answer_stream, lead_text

RAW = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=8)
CHAT = dataclasses.replace(RAW, operation="chat")
ECHO = dataclasses.replace(RAW, echo=True)


def text_of(tokenizer, spec, prompt, answer) -> str:
    stream = answer_stream(tokenizer, spec, prompt)
    stream.push(answer)
    stream.finish()
    return lead_text(tokenizer, spec, prompt) + stream.text


@pytest.fixture
def prompt_and_answer(tokenizer) -> tuple[list[int], list[int]]:
    words = " brown fox" if tokenizer.pieces.form.byte_level else "brown fox"
    return tokenizer.encode("The quick"), tokenizer.encode(words, add_special=False)


def test_prompt_and_answer_together_are_one_text(tokenizer, prompt_and_answer):
    prompt, answer = prompt_and_answer
    whole = tokenizer.decode(prompt + answer)
    assert whole == "The quick brown fox"
    assert tokenizer.decode(prompt) + text_of(tokenizer, RAW, prompt, answer) == whole
    assert text_of(tokenizer, ECHO, prompt, answer) == whole


def test_the_answer_to_a_chat_is_a_text_of_its_own(tokenizer, prompt_and_answer):
    prompt, answer = prompt_and_answer
    assert text_of(tokenizer, CHAT, prompt, answer) == tokenizer.decode(answer)


def test_after_a_prompt_without_text_the_answer_opens_the_text(tokenizer, prompt_and_answer):
    _, answer = prompt_and_answer
    for spec in (RAW, ECHO):
        assert text_of(tokenizer, spec, [tokenizer.token_id("<s>")], answer) == tokenizer.decode(answer)


def test_a_moved_answer_has_the_text_that_its_reader_has(tokenizer, prompt_and_answer):
    prompt, answer = prompt_and_answer
    for spec in (RAW, CHAT, ECHO):
        for num_sent in range(len(answer) + 1):
            stream = answer_stream(tokenizer, spec, prompt)
            stream.replay(answer[:num_sent])
            stream.push(answer[num_sent:])
            stream.finish()
            assert lead_text(tokenizer, spec, prompt) + stream.text == text_of(tokenizer, spec, prompt, answer)
