"""Requests are parsed once: what comes through is valid, and what does not names its field."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_common.errors import InvalidArgument
from octavo_gateway.answers import check_told
from octavo_gateway.requests import (
    Answers,
    Beam,
    ChatPrompt,
    Message,
    OnDisconnect,
    RawRequest,
    RequestLimits,
    Steering,
    TextPrompt,
    TokenPrompt,
)
from octavo_gateway.validation import validate

GOOD = RawRequest(prompt="hello")
SURROGATE = "a\ud800b"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"token_ids": [1]}, "token_ids"),
        ({"prompt": SURROGATE}, "prompt"),
        ({"prompt": "x" * 1_000_001}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": None, "token_ids": []}, "token_ids"),
        ({"prompt": None, "token_ids": [1, -1]}, "token_ids"),
        ({"prompt": None, "token_ids": [2**31]}, "token_ids"),
        ({"prompt": None, "token_ids": [True]}, "token_ids"),
        ({"prompt": None, "token_ids": "12"}, "token_ids"),
        ({"prompt": None, "messages": []}, "messages"),
        ({"prompt": None, "messages": [Message(role="robot", content="x")]}, "messages[0].role"),
        ({"prompt": None, "messages": [Message(role="user", content=SURROGATE)]}, "messages[0].content"),
        ({"prompt": None, "messages": [Message(role="user", content="x" * 600_000)] * 2}, "messages"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": 1e50}, "temperature"),
        ({"temperature": math.nextafter(100.0, math.inf)}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**5000}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x" * 257]}, "stop"),
        ({"stop": ["a\0"]}, "stop"),
        ({"stop": "stop"}, "stop"),
        ({"stop": [SURROGATE]}, "stop"),
        ({"stop_token_ids": [-5]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(257))}, "stop_token_ids"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"timeout_s": 0.0}, "timeout"),
        ({"timeout_s": -1.0}, "timeout"),
        ({"timeout_s": math.nan}, "timeout"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"idempotency_key": "k\0"}, "idempotency_key"),
        ({"fair_key": "k" * 256}, "fair_key"),
        ({"cache_salt": SURROGATE}, "cache_salt"),
        ({"model": "m" * 256}, "model"),
        ({"echo": 1}, "echo"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": math.nan}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-50}, "repetition_penalty"),
        ({"repetition_penalty": 0.0099}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty"),
        ({"logit_bias": {1: 101}}, "logit_bias"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
        ({"logit_bias": {-1: 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x"] * 129}, "bad_words"),
        ({"bad_words": ["a\0"]}, "bad_words"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": list(range(16385))}, "allowed_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"include_stop": 1}, "include_stop"),
        ({"structured": [("json_schema", "{")]}, "structured_output"),
        ({"structured": [("json_schema", "[]")]}, "structured_output"),
        ({"structured": [("json_schema", '{"a":' * 100_000)]}, "structured_output"),
        ({"structured": [("json_schema", {"a": "x" * 70_000})]}, "structured_output"),
        ({"structured": [("json_object", False)]}, "structured_output"),
        ({"structured": [("regex", "")]}, "structured_output"),
        ({"structured": [("regex", "a\0")]}, "structured_output"),
        ({"structured": [("regex", SURROGATE)]}, "structured_output"),
        ({"structured": [("choice", [])]}, "structured_output"),
        ({"structured": [("choice", ["a", "a"])]}, "structured_output"),
        ({"structured": [("choice", ["x" * 40_000, "y" * 40_000])]}, "structured_output"),
        ({"structured": [("ebnf", "x" * 65_537)]}, "structured_output"),
        ({"structured": [("regex", "a"), ("choice", ["a"])]}, "structured_output"),
        ({"structured": [("json_object", True)], "ignore_eos": True}, "ignore_eos"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 17}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"logprobs_mode": "cooked"}, "logprobs_mode"),
        ({"beam": Beam(width=0)}, "beam_width"),
        ({"beam": Beam(width=17)}, "beam_width"),
        ({"beam": Beam(width=2), "n": 3}, "n"),
        ({"beam": Beam(width=2), "best_of": 2}, "best_of"),
        ({"beam": Beam(width=2), "top_p": 0.9}, "top_p"),
        ({"beam": Beam(width=2), "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"beam": Beam(width=2, length_penalty=math.inf)}, "length_penalty"),
        ({"beam": Beam(width=2, early_stopping=1)}, "early_stopping"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_name_of_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        validate(replace(GOOD, **changes))
    assert refused.value.param == param
    assert len(refused.value.message) < 400


def test_defaults_are_those_of_the_proto() -> None:
    valid = validate(GOOD)
    assert (valid.temperature, valid.top_k, valid.top_p, valid.seed, valid.max_tokens) == (1.0, 0, 1.0, None, None)
    assert (valid.idempotency_key, valid.fair_key, valid.on_disconnect) == (None, None, OnDisconnect.CANCEL)
    assert valid.operation == "text_completion"
    assert valid.steering == Steering() and not valid.include_stop
    assert valid.answers == Answers()


def test_biases_and_allowed_ids_come_in_order_and_once() -> None:
    valid = validate(replace(GOOD, logit_bias={9: 1, 3: -100}, allowed_token_ids=[5, 2, 5]))
    assert valid.steering == Steering(logit_bias=((3, -100.0), (9, 1.0)), allowed_token_ids=(2, 5))


@pytest.mark.parametrize(
    ("given", "grammar"),
    [
        (("json_schema", '{"type": "object"}'), ("json_schema", '{"type": "object"}')),
        (("json_schema", {"const": "\0"}), ("json_schema", '{"const": "\\u0000"}')),
        (("json_schema", True), ("json_schema", "true")),
        (("json_object", True), ("json_object", "")),
        (("choice", ["a", "é"]), ("choice", '["a", "é"]')),
        (("regex", "a|b"), ("regex", "a|b")),
        (("ebnf", 'root ::= "a"'), ("ebnf", 'root ::= "a"')),
    ],
)
def test_a_grammar_comes_through_as_its_kind_and_one_text(given: Any, grammar: Any) -> None:
    assert validate(replace(GOOD, structured=[given])).grammar == grammar
    assert validate(GOOD).grammar is None


def test_a_beam_search_has_its_own_bounds() -> None:
    raw = replace(GOOD, n=2, beam=Beam(width=4, length_penalty=-1, early_stopping=None), temperature=0.7, top_p=1.0)
    expected = Answers(n=2, best_of=2, beam_width=4, length_penalty=-1.0, early_stopping=None)
    assert validate(raw).answers == expected


@pytest.mark.parametrize(
    ("asked", "num_prompt_tokens", "max_tokens", "param"),
    [
        (Answers(prompt_logprobs=20), 60_000, 10, "prompt_logprobs"),
        (Answers(logprobs=20, n=16), 10, 4096, "logprobs"),
        (Answers(logprobs=20), 60_000, 4096, None),
        (Answers(prompt_logprobs=20, n=16), 2_840, 10, None),
        (Answers(prompt_logprobs=20, n=16), 2_841, 10, "prompt_logprobs"),
        (Answers(), 10**6, 10**6, None),
    ],
)
def test_what_no_message_could_carry_is_refused_before_it_is_computed(
    asked: Answers, num_prompt_tokens: int, max_tokens: int, param: str | None
) -> None:
    try:
        check_told(asked, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
    except InvalidArgument as refused:
        assert (refused.param, refused.code) == (param, "TOO_MUCH_TOLD")
    else:
        assert param is None


def test_best_of_is_n_where_it_is_not_given() -> None:
    assert validate(replace(GOOD, n=3)).answers == Answers(n=3, best_of=3)
    told = Answers(n=2, best_of=5, logprobs=0, prompt_logprobs=20, processed_logprobs=True)
    raw = replace(GOOD, n=2, best_of=5, logprobs=0, prompt_logprobs=20, logprobs_mode="processed")
    assert validate(raw).answers == told


def test_the_edges_are_accepted() -> None:
    valid = validate(
        replace(
            GOOD,
            temperature=0,
            top_p=1,
            max_tokens=1,
            seed=-(2**63),
            priority=100,
            stop=["x" * 256] * 16,
            stop_token_ids=[3, 3, 0],
            idempotency_key="k" * 255,
        )
    )
    assert valid.temperature == 0.0
    assert valid.stop_token_ids == (3, 0)


@pytest.mark.parametrize(
    ("given", "taken"), [(100, 100.0), (1e-5, 1e-5), (9e-6, 0.0), (5e-324, 0.0), (0, 0.0), (-0.0, 0.0)]
)
def test_temperatures_that_are_taken_divide_a_float32_without_loss(given: float, taken: float) -> None:
    temperature = validate(replace(GOOD, temperature=given)).temperature
    assert temperature == taken
    if temperature:
        assert 0 < np.float32(1 / temperature) < math.inf


def test_the_bound_of_the_temperature_is_named() -> None:
    with pytest.raises(InvalidArgument, match="temperature must be from 0 to 100"):
        validate(replace(GOOD, temperature=100.1))


@pytest.mark.parametrize("penalty", [0.01, 1, 100])
def test_penalties_of_repetition_at_their_bounds_are_taken(penalty: float) -> None:
    assert validate(replace(GOOD, repetition_penalty=penalty)).steering.repetition_penalty == penalty


def test_max_tokens_0_is_taken_with_echo_only() -> None:
    assert validate(replace(GOOD, max_tokens=0, echo=True)).max_tokens == 0


def test_each_kind_of_prompt_comes_through_as_it_is() -> None:
    assert validate(GOOD).prompt == TextPrompt(text="hello")
    messages = [Message(role="system", content=""), Message(role="user", content="hi\0")]
    chat = validate(replace(GOOD, prompt=None, messages=messages))
    assert chat.prompt == ChatPrompt(messages=tuple(messages))
    assert chat.operation == "chat"
    assert validate(replace(GOOD, prompt=None, token_ids=[0, 5])).prompt == TokenPrompt(ids=(0, 5))


def test_limits_are_the_callers() -> None:
    with pytest.raises(InvalidArgument) as refused:
        validate(GOOD, RequestLimits(max_prompt_chars=4))
    assert refused.value.code == "PROMPT_TOO_LARGE"


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
)


FIELDS = sorted(RawRequest.__dataclass_fields__.keys() - {"on_disconnect", "messages", "prompt", "beam", "structured"})


# One or two at a time: with all of them at once, the first refusal would hide the rest.
@given(st.dictionaries(st.sampled_from(FIELDS), anything, min_size=1, max_size=2))
def test_whatever_is_given_is_either_valid_or_refused(changes: dict[str, Any]) -> None:
    raw = replace(GOOD, **changes)
    try:
        valid = validate(raw)
    except InvalidArgument as refused:
        assert refused.param
        return
    assert math.isfinite(valid.temperature)
    assert 0 <= valid.temperature <= 100
    assert 0 < valid.top_p <= 1
    assert valid.top_k >= 0
    assert valid.max_tokens is None or valid.max_tokens >= 1 or valid.echo
    assert valid.timeout_s is None or valid.timeout_s > 0
    assert -100 <= valid.priority <= 100
