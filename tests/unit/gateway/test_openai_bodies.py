"""Bodies of the OpenAI API: what is taken, refused and ignored."""

from __future__ import annotations

import json

import pytest

from octavo_common.errors import QuotaExceeded, Unauthenticated, Unavailable
from octavo_gateway.openai.bodies import parse_chat, parse_completion
from octavo_gateway.openai.errors import BadRequest, error_body, error_response
from octavo_gateway.requests import Beam, RequestLimits

LIMITS = RequestLimits(max_prompts=4, max_prompt_chars=100)
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields):
    body, ignored = parse_chat({"model": "m", "messages": MESSAGES, **fields})
    return body.raw_requests("", LIMITS)[0], ignored


def completion(**fields):
    body, ignored = parse_completion({"model": "m", "prompt": "a", **fields})
    return body.raw_requests("key", LIMITS)[0], ignored


NEUTRAL = {
    "n": 1,
    "logprobs": False,
    "tools": [],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "min_p": 0.0,
    "suffix": None,
    "chat_template_kwargs": None,
    "min_tokens": 0,
    "stop": None,
    "stream": None,
    "seed": None,
    "store": None,
}


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_value_that_asks_for_what_is_done_anyway_is_taken(name):
    assert chat(**{name: NEUTRAL[name]})[1] == ()


CHANGING = {
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "reasoning_effort": "low",
    "temprature": 1,
}


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_a_value_that_would_change_the_answer_is_refused_by_name(name):
    with pytest.raises(BadRequest) as caught:
        chat(**{name: CHANGING[name]})
    assert caught.value.param == name


@pytest.mark.parametrize("value", [["text", "audio"], "text", []])
def test_a_parameter_that_is_there_with_one_value_is_refused_with_that_value(value):
    with pytest.raises(BadRequest, match=r"only .* is supported"):
        chat(modalities=value)


@pytest.mark.parametrize("name", ["tools", "typical_p"])
def test_a_parameter_that_is_not_there_at_all_says_so(name):
    with pytest.raises(BadRequest, match="not supported in this release"):
        chat(**{name: CHANGING.get(name, 0.5)})


def test_log_probabilities_are_asked_for_by_each_apis_own_names():
    assert chat(logprobs=True, top_logprobs=3)[0].logprobs == 3
    assert (chat(logprobs=True)[0].logprobs, chat(logprobs=False, top_logprobs=0)[0].logprobs) == (0, None)
    with pytest.raises(BadRequest) as caught:
        chat(top_logprobs=3)
    assert caught.value.param == "top_logprobs"
    raw, _ = completion(logprobs=2, logprobs_mode="processed")
    assert (raw.logprobs, raw.prompt_logprobs, raw.logprobs_mode) == (2, None, "processed")
    assert completion(logprobs=2, echo=True)[0].prompt_logprobs == 2
    assert completion(logprobs=False)[0].logprobs is None
    for parse in (chat, completion):
        assert parse(prompt_logprobs=4)[0].prompt_logprobs == 4


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"response_format": {"type": "text"}}, []),
        ({"response_format": {"type": "json_object"}}, [("json_object", True)]),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            [("json_schema", SCHEMA)],
        ),
        ({"structured_outputs": {"json": SCHEMA}}, [("json_schema", SCHEMA)]),
        ({"structured_outputs": {"regex": "a+", "disable_fallback": True}}, [("regex", "a+")]),
        ({"structured_outputs": {"choice": ["a", "b"]}}, [("choice", ["a", "b"])]),
        ({"structured_outputs": {"grammar": "start: x"}}, [("ebnf", "start: x")]),
        ({"structured_outputs": {"json_object": True}}, [("json_object", True)]),
        ({"guided_json": "{}"}, [("json_schema", "{}")]),
        ({"guided_regex": "a"}, [("regex", "a")]),
        ({"guided_choice": ["a"]}, [("choice", ["a"])]),
        ({"guided_grammar": "g"}, [("ebnf", "g")]),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, [("json_object", True), ("regex", "a")]),
    ],
)
def test_structured_output_has_the_names_of_other_servers(fields, given):
    for parse in (chat, completion):
        raw, ignored = parse(**fields)
        assert (list(raw.structured), ignored) == (given, ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        # As vLLM: what asks for a structure names one.
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False, "regex": None}}, "structured_outputs"),
        ({"guided_choice": "a"}, "guided_choice"),
    ],
)
def test_forms_of_structured_output_that_are_not_there_are_refused_by_name(fields, param):
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


REFUSED_OR_SAID = [
    ({}, "structured_outputs"),
    ({"response_format": {"type": "text"}}, "structured_outputs"),
    ({"response_format": {"type": "grammar"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"json": "{"}, "guided_regex": "a"}, "guided_regex"),
]


@pytest.mark.parametrize(("fields", "name"), REFUSED_OR_SAID)
@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
def test_a_body_tells_its_names_also_where_it_is_refused(parse, fields, name):
    body, _ = parse({"prompt": "a", **fields} if parse is parse_completion else {"messages": MESSAGES, **fields})
    assert body.names["structured_output"] == name


@pytest.mark.parametrize(
    ("spacing", "options"),
    [
        ({"disable_any_whitespace": True}, {"whitespace_flexible": False}),
        ({"whitespace_pattern": " ?"}, {"whitespace_pattern": " ?"}),
    ],
)
def test_the_spacing_of_json_goes_with_its_schema(spacing, options):
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        raw, _ = chat(structured_outputs={"json": schema, **spacing})
        assert list(raw.structured) == [("json_schema", SCHEMA | {"x-guidance": options})]
    raw, _ = chat(structured_outputs={"json_object": True, **spacing})
    assert list(raw.structured) == [("json_schema", {"type": "object", "x-guidance": options})]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b", "a"], ["a", "b", "a"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2]], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_each_prompt_is_a_request_with_a_key_of_its_own(prompt, prompts):
    body, _ = parse_completion({"prompt": prompt, "seed": 3})
    found = body.raw_requests("once", LIMITS)
    assert [each.prompt if each.prompt is not None else each.token_ids for each in found] == prompts
    keys = [each.idempotency_key for each in found]
    assert keys == (["once"] if len(prompts) == 1 else [f"once#{n}" for n in range(len(prompts))])
    assert [(each.seed, each.max_tokens) for each in found] == [(3, 16)] * len(prompts)


@pytest.mark.parametrize("prompt", [["a"] * 5, ["a" * 60, "b" * 60], [[1] * 60, [2] * 60]])
def test_too_many_or_too_large_prompts_are_refused(prompt):
    body, _ = parse_completion({"prompt": prompt})
    with pytest.raises(BadRequest) as caught:
        body.raw_requests("", LIMITS)
    assert caught.value.param == "prompt"


def test_a_beam_search_has_the_names_that_vllm_gave_it():
    raw, _ = completion(use_beam_search=True, n=2, best_of=4, length_penalty=0.5, early_stopping="never")
    assert (raw.n, raw.best_of, raw.beam) == (2, None, Beam(width=4, length_penalty=0.5, early_stopping=None))
    assert chat(use_beam_search=True, n=3)[0].beam == Beam(width=3)
    for fields in ({"length_penalty": 2.0}, {"early_stopping": True}):
        with pytest.raises(BadRequest) as caught:
            chat(**fields)
        assert caught.value.param in fields


def test_stream_options_are_for_streams_alone():
    for given in ({}, {"include_usage": True}):
        for stream in ({}, {"stream": False}):
            with pytest.raises(BadRequest) as caught:
                chat(stream_options=given, **stream)
            assert (caught.value.param, caught.value.code) == ("stream_options", "INVALID_ARGUMENT")
        assert chat(stream_options=given, stream=True)[1] == ()
    assert chat(stream_options=None)[1] == ()


def test_a_field_of_the_stream_options_is_taken_ignored_by_name_or_refused_by_name():
    assert chat(stream=True, stream_options={"include_obfuscation": False})[1] == (
        "stream_options.include_obfuscation",
    )
    for parse in (chat, completion):
        with pytest.raises(BadRequest) as caught:
            parse(stream=True, stream_options={"include_usge": True})
        assert (caught.value.param, caught.value.code) == ("stream_options.include_usge", "UNKNOWN_PARAMETER")


def test_further_fields_of_messages_and_of_their_parts_are_ignored_by_name():
    part = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    _, ignored = chat(messages=[{"role": "user", "name": "bob", "refusal": None, "content": [part]}])
    assert ignored == ("messages.content.cache_control", "messages.name")


def test_true_is_not_one():
    with pytest.raises(BadRequest):
        chat(n=True)


def test_what_steers_the_choice_of_tokens_comes_through():
    asked = {
        "min_tokens": 3,
        "presence_penalty": 1,
        "frequency_penalty": -0.5,
        "logit_bias": {"7": 5, "3": -100},
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "bad_words": ["no"],
        "allowed_token_ids": [1, 2],
    }
    for parse in (chat, completion):
        raw, ignored = parse(**asked, include_stop_str_in_output=True)
        found = {name: getattr(raw, name) for name in asked}
        assert found == {**asked, "logit_bias": {7: 5, 3: -100}, "bad_words": ("no",), "allowed_token_ids": (1, 2)}
        assert raw.include_stop and ignored == ()


@pytest.mark.parametrize("key", ["x", "-1", "1.0", " 1", "\u0663", "9" * 4000])
def test_a_bias_for_something_that_is_no_token_id_is_refused(key):
    with pytest.raises(BadRequest) as caught:
        chat(logit_bias={key: 1})
    assert caught.value.param == "logit_bias" and len(caught.value.message) < 200


def test_both_names_of_the_token_limit_may_be_given_when_they_agree():
    assert chat(max_tokens=3, max_completion_tokens=3)[0].max_tokens == 3
    assert chat(max_completion_tokens=3)[0].max_tokens == 3
    assert chat()[0].max_tokens is None
    with pytest.raises(BadRequest):
        chat(max_tokens=3, max_completion_tokens=4)


def test_stop_may_be_text_or_a_list():
    assert chat(stop="x")[0].stop == ("x",)
    assert chat(stop=["x", "y"])[0].stop == ("x", "y")


def test_a_completion_keeps_its_idempotency_key_and_its_own_default():
    raw, _ = completion(echo=True)
    assert (raw.idempotency_key, raw.max_tokens, raw.echo, raw.prompt) == ("key", 16, True, "a")


BAD_MESSAGES = {
    "messages": None,
    "messages[0].role": [{"content": "hi"}],
    "messages[0].content": [{"role": "assistant", "content": None}],
    "messages[0].content[0].type": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    "messages[0].content[1].text": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}],
    "messages[0].tool_calls": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
    "messages[0].tool_call_id": [{"role": "tool", "content": "", "tool_call_id": "1"}],
}


@pytest.mark.parametrize("param", sorted(BAD_MESSAGES))
def test_a_bad_message_is_refused_with_its_place(param):
    with pytest.raises(BadRequest) as caught:
        chat(messages=BAD_MESSAGES[param])
    assert caught.value.param == param


def test_an_error_has_the_form_that_openai_clients_read():
    error = QuotaExceeded("too many \ud800", hint="wait", retry_after_s=2.2)
    assert error_body(error) == {
        "error": {
            "message": "too many ?",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
            "hint": "wait",
        }
    }
    answer = error_response(error, {"X-Octavo-Job": "j"})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "3"
    assert answer.headers["retry-after-ms"] == "2200" and answer.headers["x-octavo-job"] == "j"
    assert error_response(Unavailable("down")).headers["retry-after"] == "1"
    assert error_response(Unauthenticated("who", code="UNKNOWN_KEY")).headers["www-authenticate"] == "Bearer"
