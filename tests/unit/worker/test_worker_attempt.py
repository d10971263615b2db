"""The result of an attempt has the text that its log gave out, unless a stop string cuts what an earlier one let go."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest
from fakes.small_tokenizers import MAKERS, bundle_of

from octavo_common.jobs.model import Claimed, Job, JobState
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import Delta, SeqId
from octavo_worker.intake.attempt import Attempt, new_attempt

SPEC = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=64)


@pytest.fixture(scope="module", params=sorted(MAKERS))
def tokenizer(request) -> Tokenizer:
    return Tokenizer(bundle_of(MAKERS[request.param]()))


def attempt_of(
    tokenizer: Tokenizer, spec: GenerationSpec, emitted: tuple[int, ...] = (), now: float = 0.0, **times: float
) -> Attempt:
    values = dict.fromkeys(Job.__dataclass_fields__)
    values.update(
        id=uuid4(),
        fence=1,
        state=JobState.RUNNING,
        prompt_ids=tuple(tokenizer.encode("The quick")),
        emitted_ids=emitted,
        total_losses=0,
        numerics_changed=False,
        created_at=datetime.fromtimestamp(0, UTC),
    )
    claimed = Claimed(job=Job(**values), deadline_in_s=None, **{"age_s": 0.0, "wait_s": 0.0, **times})
    return new_attempt(claimed, spec, tokenizer=tokenizer, trace=SimpleNamespace(), now=now)


@pytest.mark.parametrize("stop", [(), ("jumps",), ("x j",), ("never",)])
@pytest.mark.parametrize("changes", [{}, {"echo": True}, {"include_stop": True}, {"min_tokens": 4}])
def test_result_and_log_have_one_text_wherever_the_job_moved(tokenizer, stop, changes):
    spec = dataclasses.replace(SPEC, stop=stop, **changes)
    answer = tokenizer.encode("brown fox jumps over é the lazy dog", add_special=False)
    whole = run(attempt_of(tokenizer, spec), answer)
    for num_sent in range(len(whole.token_ids)):
        first = attempt_of(tokenizer, spec)
        first.push(answer[:num_sent], 0.0)
        sent = tuple(first.log.ids)
        second = attempt_of(tokenizer, spec, sent)
        assert not second.replay()
        result = run(second, answer[len(sent) :])
        assert (result.token_ids, result.text) == (whole.token_ids, whole.text)
        assert second.log.text == result.text


def run(attempt: Attempt, answer: list[int]):
    stopped = False
    for token in answer:
        stopped = attempt.push([token], 0.0)
        if stopped:
            break
    stopped = stopped or attempt.finish_text()
    assert attempt.log.text == attempt.result("stop").text
    return attempt.result("stop" if stopped else "length")


def test_a_stop_string_that_began_in_tokens_let_go_earlier_cuts_the_result(tokenizer):
    spec = dataclasses.replace(SPEC, stop=("quick brown",))
    # A reader claims tokens in which the stop string begins: nobody released them, but it has them.
    space = " " if tokenizer.pieces.form.byte_level else ""
    sent, rest = (tuple(tokenizer.encode(text, add_special=False)) for text in ("so quick", f"{space}brown fox"))
    attempt = attempt_of(tokenizer, spec, sent)
    assert not attempt.replay()
    text = attempt.log.text
    for token in rest:
        if attempt.push([token], 0.0):
            break
    else:
        pytest.fail("the stop string was not found")
    assert "quick" in text
    assert attempt.result("stop").text.strip() == "so"
    assert attempt.result("stop").token_ids[: len(sent)] == sent


def times_of(attempt: Attempt, tokens: list[int]) -> tuple[float | None, float | None, float | None]:
    """Figures of an attempt claimed at 100 whose first step began at 101 and whose tokens come each second from 102."""
    attempt.note(Delta(id=SeqId(attempt.request_id, 0), events=("scheduled",)), 101.0)
    for number, token in enumerate(tokens):
        attempt.push([token], 102.0 + number)
    attempt.finish_text()
    usage = attempt.result("length").usage
    return usage.queue_s, usage.time_to_first_token_s, usage.total_s


def test_the_times_of_an_undisturbed_job_count_from_its_acceptance(tokenizer):
    tokens = tokenizer.encode("brown fox", add_special=False)
    attempt = attempt_of(tokenizer, SPEC, now=100.0, age_s=5.0)
    assert times_of(attempt, tokens) == (6.0, 7.0, 6.0 + len(tokens))


def test_a_job_that_moved_keeps_the_first_start_and_the_first_token_that_its_caller_saw(tokenizer):
    tokens = tokenizer.encode("brown fox", add_special=False)
    sent = tuple(tokenizer.encode("The", add_special=False))
    times = {"age_s": 20.0, "earlier_start_s": 0.25, "earlier_token_s": 0.5}
    attempt = attempt_of(tokenizer, SPEC, sent, 100.0, **times)
    attempt.replay()
    assert times_of(attempt, tokens) == (0.25, 0.5, 21.0 + len(tokens))


def test_the_first_token_of_a_job_that_was_lost_before_anybody_had_one_is_this_attempts(tokenizer):
    tokens = tokenizer.encode("brown fox", add_special=False)
    attempt = attempt_of(tokenizer, SPEC, (), 100.0, age_s=20.0, earlier_start_s=0.25)
    assert times_of(attempt, tokens) == (0.25, 22.0, 21.0 + len(tokens))


def test_what_nobody_knows_is_left_out(tokenizer):
    sent = tuple(tokenizer.encode("The", add_special=False))
    attempt = attempt_of(tokenizer, SPEC, sent, 100.0, age_s=20.0, earlier_start_s=0.25)
    attempt.replay()
    assert times_of(attempt, []) == (0.25, None, None)


def test_everything_that_steers_the_choice_reaches_the_engine(tokenizer):
    asked = {
        "min_tokens": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": ((3, -1.0), (9, 2.0)),
        "bad_words": ((1, 2), (3,)),
    }
    spec = GenerationSpec.from_json(json.loads(json.dumps(dataclasses.replace(SPEC, **asked).to_json())))
    spec = dataclasses.replace(spec, allowed_token_ids=(4, 5))
    params = attempt_of(tokenizer, spec).request((0,)).params
    assert {name: getattr(params, name) for name in asked} == asked
    assert params.allowed_token_ids == {4, 5} and params.stop_token_ids == {0}
