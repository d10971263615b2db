"""docs/clients.md says of every parameter and endpoint of the OpenAI API what the gateway does with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from http_world import HttpWorld
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from octavo_gateway.openai import support
from octavo_gateway.openai.bodies import ChatBody, CompletionBody

PAGE = (Path(__file__).parents[3] / "docs" / "clients.md").read_text()
PATHS = ("/v1/chat/completions", "/v1/completions")
ROWS = {
    name: (chat, completion)
    for name, chat, completion in re.findall(
        r"^\| `(\w+)` \| (supported|unknown|ignored|refused|only `[^`]+`) "
        r"\| (supported|unknown|ignored|refused|only `[^`]+`) \|",
        PAGE,
        re.M,
    )
}
ENDPOINTS = re.findall(r"^\| `(GET|POST|DELETE) (/\S+)` \| (\d{3}) \|$", PAGE, re.M)
BASE: dict[str, dict[str, Any]] = {
    PATHS[0]: {"messages": [{"role": "user", "content": "hi"}], "stream": True},
    PATHS[1]: {"prompt": "hi", "stream": True},
}
# Further fields that a parameter is taken together with.
WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "length_penalty": {"use_beam_search": True},
    "early_stopping": {"use_beam_search": True},
}
# Values of parameters that are of another type in completions.
IN_COMPLETIONS: dict[str, Any] = {"logprobs": 2}
# Values that ask for something; a plain string for all others.
VALUES: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "prompt": "hello",
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 5,
    "stop": ["x"],
    "stop_token_ids": [5],
    "stream": True,
    "stream_options": {"include_usage": True},
    "echo": True,
    "ignore_eos": True,
    "min_tokens": 0,
    "priority": 1,
    "timeout_s": 5.0,
    "on_disconnect": "cancel",
    "n": 2,
    "best_of": 2,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "length_penalty": 1.5,
    "min_p": 0.5,
    "typical_p": 0.5,
    "modalities": ["text", "audio"],
    "use_beam_search": True,
    "continue_final_message": True,
    "add_generation_prompt": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "structured_outputs": {"regex": "a"},
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": 'start: "a"',
    "prompt_logprobs": 1,
    "logprobs_mode": "processed",
    "early_stopping": "never",
    "bad_words": ["bad"],
    "allowed_token_ids": [5, 6],
}


def openai_names(module: Any) -> set[str]:
    return set(module.CompletionCreateParamsNonStreaming.__annotations__)


def test_the_table_has_every_parameter_of_openais_own_client_and_every_one_that_is_known_here():
    known = {*ChatBody.model_fields, *CompletionBody.model_fields, *support._NEUTRAL, *support._IGNORED}
    assert set(ROWS) == known
    for module, column in ((chat_create_params, 0), (completion_create_params, 1)):
        names = openai_names(module)
        assert names <= set(ROWS)
        assert [name for name in names if ROWS[name][column] == "unknown"] == []


async def outcome(http: HttpWorld, path: str, name: str, value: Any) -> str:
    """What becomes of a request with this value, in the table's words."""
    more = WITH.get(name, {}) if path == PATHS[0] or name != "top_logprobs" else {}
    async with http.raw().stream("POST", path, json={**BASE[path], **more, name: value}) as answer:
        if answer.status_code == 200:
            ignored = answer.headers.get("x-octavo-ignored", "")
            assert ignored in ("", name)
            return "ignored" if ignored else "supported"
        error = json.loads(await answer.aread())["error"]
    assert (answer.status_code, error["param"]) == (400, name), error
    if error["code"] == "unknown_parameter":
        return "unknown"
    assert error["code"] == "unsupported_parameter", error
    only = re.search(r": only (.+) is supported$", error["message"])
    assert only or error["message"] == f"{name} is not supported in this release"
    return f"only `{only[1]}`" if only else "refused"


async def test_the_table_says_what_happens(http: HttpWorld):
    wrong = []
    for name, row in ROWS.items():
        for path, said in zip(PATHS, row, strict=True):
            value = IN_COMPLETIONS.get(name) if path == PATHS[1] else None
            found = await outcome(http, path, name, VALUES.get(name, "low") if value is None else value)
            if found != said:
                wrong.append((path, name, said, found))
            if said.startswith("only"):
                assert await outcome(http, path, name, json.loads(said[6:-1])) == "supported"
    assert wrong == []


async def test_the_endpoints_that_are_not_there_say_so(http: HttpWorld):
    assert len(ENDPOINTS) >= 15
    for method, path, status in ENDPOINTS:
        answer = await http.raw().request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (int(status), "unknown_url"), path


async def test_tokens_beyond_the_context_are_cut_and_the_answer_ends_by_its_length(http: HttpWorld):
    call = http.openai().completions.create(model="tiny", prompt="hi", max_tokens=100_000)
    answer = await http.served(call)
    limit = http.world.card.max_sequence_tokens
    assert (answer.usage.total_tokens, answer.choices[0].finish_reason) == (limit, "length")
