"""What is told of tokens, in the forms of OpenAI and vLLM."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from fakes.gateway_world import byte_bundle

from octavo_common.jobs.spec import TokenLogprob, UsageRecord
from octavo_common.text.tokenizer import Tokenizer
from octavo_gateway.openai.logprobs import Names
from octavo_gateway.openai.shapes import Gathered, Shape, Telling
from octavo_gateway.requests import OnDisconnect
from octavo_gateway.values import AcceptedJob, ChoiceEnd, Finish, TokenPiece

E_ACUTE = tuple("é".encode())
EOS = 256


@pytest.fixture(scope="module")
def names() -> Names:
    return Names(Tokenizer(byte_bundle()))


def told(logprob: float | None, *top: tuple[int, float], rank: int = 1, at: int = 0) -> TokenLogprob:
    return TokenLogprob(logprob, rank, top, at)


def test_a_token_of_half_a_character_has_its_bytes_and_they_are_written_out(names):
    (one,) = names.chat(E_ACUTE[:1], [told(-1.0, (65, -0.5), (E_ACUTE[0], -1.0))])["content"]
    assert (one["token"], one["bytes"], one["logprob"]) == ("bytes:\\xc3", [0xC3], -1.0)
    assert [best["token"] for best in one["top_logprobs"]] == ["A", "bytes:\\xc3"]


def test_special_tokens_have_their_names_and_ids_outside_the_vocabulary_none(names):
    assert (names.text(EOS), names.data(EOS)) == ("<eos>", b"<eos>")
    assert names.data(9999) == b""


def test_in_completions_the_chosen_token_stands_beside_the_likeliest(names):
    form = names.completion([66, 65], [told(-2.0, (65, -0.1), rank=5, at=3), told(-0.1, (65, -0.1), at=4)])
    assert form == {
        "tokens": ["B", "A"],
        "token_logprobs": [-2.0, -0.1],
        "top_logprobs": [{"A": -0.1, "B": -2.0}, {"A": -0.1}],
        "text_offset": [3, 4],
    }


def test_what_nobody_knows_is_null_everywhere(names):
    assert names.chat([65], [told(None)])["content"][0]["logprob"] is None
    form = names.completion([65], [told(None, at=2)])
    assert (form["token_logprobs"], form["top_logprobs"], form["text_offset"]) == ([None], [None], [2])
    assert names.prompt([65], [told(None)]) == [None]


def test_vllms_form_for_prompts_has_ranks(names):
    (one,) = names.prompt([66], [told(-3.0, (65, -0.1), (67, -0.2), rank=7)])
    assert one == {
        "65": {"logprob": -0.1, "rank": 1, "decoded_token": "A"},
        "67": {"logprob": -0.2, "rank": 2, "decoded_token": "C"},
        "66": {"logprob": -3.0, "rank": 7, "decoded_token": "B"},
    }


def accepted(**changes) -> AcceptedJob:
    values = {
        "job_id": uuid4(),
        "created": True,
        "model": "m",
        "num_prompt_tokens": 2,
        "prompt_ids": (72, 73),
        "create_time": datetime.fromtimestamp(0, UTC),
        "on_disconnect": OnDisconnect.CANCEL,
    }
    return AcceptedJob(**{**values, **changes})


FINISH = Finish(finish_reason="stop", usage=UsageRecord(prompt_tokens=2, completion_tokens=1))
PIECE = TokenPiece(
    first_token=0,
    token_ids=(65,),
    text="A",
    logprobs=(told(-0.5),),
    prompt_logprobs=(told(None), told(-1.0, at=1)),
)


def whole(shape: Shape) -> dict:
    answer = Gathered()
    answer.take(PIECE)
    return shape.whole([answer], [FINISH])


def test_a_chat_has_the_prompts_beside_its_choices_and_a_completion_in_them(names):
    telling = Telling(names=names, logprobs=True, prompt_logprobs=True)
    chat = whole(Shape([accepted()], chat=True, telling=telling))
    by_token = [None, {"73": {"logprob": -1.0, "rank": 1, "decoded_token": "I"}}]
    assert chat["prompt_logprobs"] == by_token
    assert [one["token"] for one in chat["choices"][0]["logprobs"]["content"]] == ["A"]
    completion = whole(Shape([accepted()], chat=False, telling=telling))
    assert completion["choices"][0]["prompt_logprobs"] == by_token
    assert completion["choices"][0]["logprobs"]["tokens"] == ["A"]
    for is_chat, place in ((True, lambda chunk: chunk), (False, lambda chunk: chunk["choices"][0])):
        chunk = Shape([accepted()], chat=is_chat, telling=telling).piece(PIECE)
        assert chunk is not None and place(chunk)["prompt_logprobs"] == by_token


def test_an_echoed_prompt_leads_the_completions_tokens(names):
    shape = Shape([accepted()], chat=False, telling=Telling(names=names, logprobs=True, echo=True))
    form = whole(shape)["choices"][0]["logprobs"]
    assert (form["tokens"], form["token_logprobs"]) == (["H", "I", "A"], [None, -1.0, -0.5])


def test_a_piece_without_text_goes_out_for_what_is_told_of_it_alone(names):
    piece = TokenPiece(first_token=0, token_ids=(E_ACUTE[0],), text="", logprobs=(told(-0.5),))
    assert Shape([accepted()], chat=True).piece(piece) is None
    chunk = Shape([accepted()], chat=True, telling=Telling(names=names, logprobs=True)).piece(piece)
    assert chunk is not None and chunk["choices"][0]["logprobs"]["content"][0]["bytes"] == [E_ACUTE[0]]


def test_each_answer_has_an_end_of_its_own_and_its_score():
    ends = (ChoiceEnd(finish_reason="stop", score=-1.0), ChoiceEnd(finish_reason="length", score=-2.0))
    finish = Finish(finish_reason="stop", usage=FINISH.usage, choices=ends)
    shape = Shape([accepted(num_choices=2)], chat=True)
    closings = [chunk["choices"][0] for chunk in shape.closing(finish)]
    assert [(c["index"], c["finish_reason"], c["octavo"]["score"]) for c in closings] == [
        (0, "stop", -1.0),
        (1, "length", -2.0),
    ]
    assert [chunk["choices"][0]["index"] for chunk in shape.opening()] == [0, 1]
