"""A value that has no form in the protocol is refused by the parameter's own name, whatever the parameter."""

from __future__ import annotations

import inspect
import math

import pytest

import octavo
from octavo import calls, calls_fleet
from octavo.request import PARTS, generation

# What no parameter takes, and what only some do not.
NOTHING = object()
WRONG = {
    "prompt": [5, b"\xff"],
    "messages": [5, "hi", {"role": "user", "content": "hi"}],
    "token_ids": [5, "abc", ["a"], [2**40], [1.5]],
    "model": [5],
    "priority": ["high", 2**40, 1.5],
    "timeout_s": ["soon", math.nan, math.inf, True, 10**400, 1e300],
    "idempotency_key": [5],
    "echo": ["yes", 1],
    "cache_salt": [5],
    "fair_key": [5],
    "n": ["two", 1.5, 2**40],
    "best_of": ["two", 1.5],
    "beam_width": ["two", 1.5],
    "length_penalty": ["long"],
    "early_stopping": ["always", 5, ["never"]],
    "json_schema": [{"a": {1, 2}}, math],
    "json_object": ["yes"],
    "regex": [5],
    "choice": [5, [5], [None]],
    "grammar": [5],
    "max_tokens": ["many", 1.5, 2**40],
    "temperature": ["hot", [1]],
    "top_k": ["x", 2**40],
    "top_p": ["x"],
    "min_p": ["x"],
    "seed": ["x", 2**70],
    "stop": [5, [5]],
    "include_stop": ["yes"],
    "stop_token_ids": [5, ["a"], "5"],
    "ignore_eos": ["yes"],
    "min_tokens": ["x"],
    "repetition_penalty": ["x"],
    "presence_penalty": ["x"],
    "frequency_penalty": ["x"],
    "logit_bias": [5, {"a": 1}, {1: "a"}, [1]],
    "bad_words": [5, [5]],
    "allowed_token_ids": [5, ["a"]],
    "logprobs": ["x"],
    "prompt_logprobs": ["x"],
    "logprobs_mode": ["cooked", 5, ["raw"]],
}
# They have a meaning only beside another.
BESIDE = {"length_penalty": {"beam_width": 2}, "early_stopping": {"beam_width": 2}}


def test_the_table_has_every_parameter() -> None:
    names = {name for part in (generation, *PARTS) for name in inspect.signature(part).parameters}
    assert set(WRONG) == names - {"detach", "more"}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_value_without_a_form_is_refused_by_its_name(name: str) -> None:
    for value in [*WRONG[name], NOTHING]:
        given = {**BESIDE.get(name, {}), name: value}
        if name not in ("prompt", "messages", "token_ids"):
            given["prompt"] = "hi"
        with pytest.raises(octavo.InvalidArgumentError) as caught:
            generation(**given)
        assert caught.value.param == name, (value, caught.value)
        assert name in str(caught.value)


@pytest.mark.parametrize("seconds", [0, 1.5, 90, -0.25, -1.5, -2, 1e-9, 315_576_000_000])
def test_a_time_limit_has_the_form_that_the_protocol_wants(seconds: float) -> None:
    found = generation("hi", timeout_s=seconds).timeout
    assert found.ToNanoseconds() == round(seconds * 1e9)
    # Both have one sign, says duration.proto.
    assert found.seconds * found.nanos >= 0 and abs(found.nanos) < 10**9


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([5], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"role": "user"}], "messages[1].content"),
        ([{"content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
    ],
)
def test_a_message_without_a_form_is_refused_by_its_place(messages: list, param: str) -> None:
    with pytest.raises(octavo.InvalidArgumentError) as caught:
        generation(messages=messages)
    assert caught.value.param == param


def test_a_structure_beside_another_is_refused_by_name() -> None:
    with pytest.raises(octavo.InvalidArgumentError) as caught:
        generation("hi", regex="a", grammar="b")
    assert caught.value.param == "grammar"


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda: calls.get_job(5), "job_id"),
        (lambda: calls.cancel_job(5.0), "job_id"),
        (lambda: calls.retry_job([]), "job_id"),
        (lambda: calls.watch_job({}), "job_id"),
        (lambda: calls.job_events(5), "job_id"),
        (lambda: calls.list_jobs(states=(), model=5, tenant="", page_size=1, page_token=""), "model"),
        (lambda: calls.list_jobs(states=["lost"], model="", tenant="", page_size=1, page_token=""), "states"),
        (lambda: calls.list_workers(include_dead="yes"), "include_dead"),
        (lambda: calls.worker_records("w", "x"), "after_step"),
        (lambda: calls_fleet.worker_pool(5), "worker_id"),
        (lambda: calls_fleet.plan_model("m", device="H200", batch="x"), "batch"),
        (lambda: calls_fleet.plan_model("m", device="H200", peak="x"), "peak"),
    ],
)
def test_other_calls_name_their_parameters_too(make, param: str) -> None:
    with pytest.raises(octavo.InvalidArgumentError) as caught:
        make()
    assert caught.value.param == param
