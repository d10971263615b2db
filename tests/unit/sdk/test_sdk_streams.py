"""The rules of a stream, alone: every way in which events and failures can follow each other."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from octavo import parsing, request
from octavo.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    OctavoError,
    UnavailableError,
)
from octavo.retry import RetryPolicy, Safety, is_broken, may_retry
from octavo.streams import StreamMachine
from octavo.v1 import common_pb2, gateway_pb2

POLICY = RetryPolicy(stream_patience_s=10.0)


def _machine(*, key: str = "k", resumable: bool = True, **parameters: object) -> StreamMachine:
    built = request.generation("hello", idempotency_key=key, detach=resumable, **parameters)  # type: ignore[arg-type]
    return StreamMachine(built, policy=POLICY, resumable=resumable)


def _accepted(job_id: str = "job-1") -> gateway_pb2.GenerationEvent:
    return gateway_pb2.GenerationEvent(accepted=gateway_pb2.Accepted(job_id=job_id, model="m"))


def _tokens(first: int, ids: list[int], text: str | None = None) -> gateway_pb2.GenerationEvent:
    text = "".join(f"<{i}>" for i in ids) if text is None else text
    return gateway_pb2.GenerationEvent(
        tokens=gateway_pb2.TokenChunk(first_token=first, token_ids=ids, text=text),
    )


def _piece(choice: int, first: int, ids: list[int], told: bool = False) -> gateway_pb2.GenerationEvent:
    event = _tokens(first, ids)
    event.tokens.choice = choice
    if told:
        event.tokens.logprobs.extend(common_pb2.TokenLogprobs(logprob=-float(i), rank=1) for i in ids)
    return event


def _finished() -> gateway_pb2.GenerationEvent:
    return gateway_pb2.GenerationEvent(
        finished=gateway_pb2.Finished(finish_reason=common_pb2.FINISH_REASON_STOP, usage=common_pb2.Usage(seed=7))
    )


def test_an_undisturbed_stream_delivers_everything_and_ends_with_a_result() -> None:
    machine = _machine()
    assert machine.start(0.0).call.path.endswith("/Generate")
    assert machine.on_event(_accepted()) is None
    chunk = machine.on_event(_tokens(0, [5, 6]))
    assert chunk is not None and chunk.token_ids == (5, 6)
    machine.on_event(_finished())
    assert machine.ended and machine.result is not None
    assert (machine.result.text, machine.result.token_ids) == ("<5><6>", (5, 6))
    assert machine.result.usage.seed == 7


def test_several_answers_are_kept_apart_and_resumed_where_each_was() -> None:
    machine = _machine(n=3)
    machine.start(0.0)
    machine.on_event(_accepted())
    machine.on_event(_piece(0, 0, [5, 6], told=True))
    machine.on_event(_piece(2, 0, [7], told=True))
    message = machine.on_failure(UnavailableError("gone"), now_s=0.2, jitter=0.0).call.request
    assert isinstance(message, gateway_pb2.ResumeGenerationRequest)
    assert list(message.token_ids) == [5, 6] and [list(other.ids) for other in message.others] == [[], [7]]
    with pytest.raises(UnavailableError):
        machine.on_event(_piece(2, 2, [9]))
    assert machine.on_event(_piece(2, 0, [7])) is None
    machine.on_event(_piece(2, 1, [8], told=True))
    finished = _finished()
    reasons = [common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH]
    finished.finished.choices.extend(common_pb2.ChoiceEnd(finish_reason=r, score=-1.0) for r in reasons)
    machine.on_event(finished)
    assert machine.result is not None
    assert [choice.token_ids for choice in machine.result.choices] == [(5, 6), (), (7, 8)]
    assert [choice.finish_reason for choice in machine.result.choices] == ["stop", "stop", "length"]
    assert [told.logprob for told in machine.result.choices[2].logprobs] == [-7.0, -8.0]
    assert machine.result.choices[0].score == -1.0 and machine.result.logprobs == machine.result.choices[0].logprobs


def test_an_answer_of_one_is_a_choice_too() -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted())
    machine.on_event(_tokens(0, [5]))
    machine.on_event(_finished())
    assert machine.result is not None
    (choice,) = machine.result.choices
    assert (choice.text, choice.token_ids, choice.score) == ("<5>", (5,), None)


def test_the_prompts_log_probabilities_come_once() -> None:
    machine = _machine(prompt_logprobs=0)
    machine.start(0.0)
    machine.on_event(_accepted())
    event = _tokens(0, [5])
    event.tokens.prompt_logprobs.extend([common_pb2.TokenLogprobs(), common_pb2.TokenLogprobs(logprob=-1.0, rank=3)])
    chunk = machine.on_event(event)
    machine.on_event(_tokens(1, [6]))
    machine.on_event(_finished())
    assert chunk is not None and machine.result is not None
    assert machine.result.prompt_logprobs == chunk.prompt_logprobs
    assert [told.logprob for told in chunk.prompt_logprobs] == [None, -1.0]


def test_a_break_before_accepted_sends_the_same_request_again() -> None:
    machine = _machine()
    first = machine.start(0.0)
    again = machine.on_failure(UnavailableError("gone"), now_s=0.1, jitter=0.0)
    assert again.call.request == first.call.request
    assert again.move and again.delay_s > 0


def test_a_break_before_accepted_is_final_without_an_idempotency_key() -> None:
    machine = _machine(key="", resumable=False)
    machine.start(0.0)
    with pytest.raises(UnavailableError):
        machine.on_failure(UnavailableError("gone"), now_s=0.1, jitter=0.0)


def test_a_break_after_tokens_resumes_at_once_with_the_job_and_the_ids() -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted())
    machine.on_event(_tokens(0, [5, 6]))
    step = machine.on_failure(UnavailableError("gone"), now_s=0.2, jitter=0.0)
    assert (step.delay_s, step.move) == (0.0, True)
    message = step.call.request
    assert isinstance(message, gateway_pb2.ResumeGenerationRequest)
    assert (message.job_id, list(message.token_ids)) == ("job-1", [5, 6])
    assert message.on_disconnect == gateway_pb2.ON_DISCONNECT_DETACH


def test_a_stream_knows_since_when_it_has_no_contact() -> None:
    machine = _machine()
    machine.start(0.0)
    assert machine.lost_since_s is None
    machine.on_event(_accepted())
    machine.on_failure(UnavailableError("gone"), now_s=2.0, jitter=0.0)
    machine.on_failure(UnavailableError("gone"), now_s=3.0, jitter=0.0)
    assert machine.lost_since_s == 2.0
    machine.on_event(_accepted())
    assert machine.lost_since_s is None


def test_patience_ends_a_stream_that_makes_no_progress_and_progress_renews_it() -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted())
    for now in (1.0, 5.0, 9.9):
        machine.on_failure(UnavailableError("gone"), now_s=now, jitter=0.0)
        machine.on_event(_accepted())  # being accepted again is no progress
    with pytest.raises(UnavailableError) as caught:
        machine.on_failure(UnavailableError("gone"), now_s=11.1, jitter=0.0)
    assert caught.value.job_id == "job-1" and machine.ended
    machine.on_event(_tokens(0, [1]))
    assert machine.on_failure(UnavailableError("gone"), now_s=20.0, jitter=0.0).delay_s == 0.0


def test_a_job_that_waits_longer_than_the_patience_survives_its_first_broken_connection() -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted())
    assert machine.on_failure(UnavailableError("gone"), now_s=500.0, jitter=0.0).delay_s == 0.0
    assert machine.on_failure(UnavailableError("gone"), now_s=510.0, jitter=0.0).delay_s > 0.0


@pytest.mark.parametrize("error", [InvalidArgumentError("no"), CancelledError("job", told=True), AbortedError("x")])
def test_what_the_platform_says_is_final(error: OctavoError) -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted())
    with pytest.raises(type(error)):
        machine.on_failure(error, now_s=0.1, jitter=0.0)


def test_a_gap_is_read_again_and_a_contradiction_ends_the_stream() -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted())
    machine.on_event(_tokens(0, [5, 6]))
    with pytest.raises(UnavailableError):
        machine.on_event(_tokens(3, [8]))
    with pytest.raises(AbortedError) as caught:
        machine.on_event(_tokens(1, [9]))
    assert caught.value.code == "STREAM_DIVERGED"
    assert machine.token_ids == [5, 6]


def test_a_stream_never_goes_on_as_another_job() -> None:
    machine = _machine()
    machine.start(0.0)
    machine.on_event(_accepted("job-1"))
    with pytest.raises(AbortedError):
        machine.on_event(_accepted("job-2"))


def test_a_broken_stream_does_not_outlive_its_deadline() -> None:
    machine = _machine(timeout_s=5.0)
    machine.start(100.0)
    assert machine.remaining_s(101.0) == pytest.approx(14.0)
    machine.on_event(_accepted())
    machine.on_event(_tokens(0, [1]))
    with pytest.raises(DeadlineExceededError):
        machine.on_failure(UnavailableError("gone"), now_s=115.5, jitter=0.0)


def test_the_echoed_prompt_is_delivered_once() -> None:
    machine = _machine(echo=True)
    machine.start(0.0)
    for _ in range(2):
        machine.on_event(_accepted())
        machine.on_event(_tokens(0, [], "hello"))
    machine.on_event(_tokens(0, [1]))
    assert machine.text == "hello<1>"


def test_text_without_tokens_at_the_end_is_kept() -> None:
    machine = _machine(echo=True)
    machine.start(0.0)
    machine.on_event(_accepted())
    machine.on_event(_tokens(0, [1], ""))
    chunk = machine.on_event(_tokens(1, [], "\ufffd"))
    assert chunk is not None and machine.text == "\ufffd"


def test_a_stream_left_before_accepted_can_find_its_job_only_by_its_key() -> None:
    machine = _machine()
    assert machine.find_job() is None
    machine.start(0.0)
    found = machine.find_job()
    assert found is not None and found.safety is Safety.KEYED
    machine.on_event(_accepted())
    assert machine.find_job() is None


@given(st.data())
def test_no_token_is_lost_or_repeated_whatever_arrives(data: st.DataObject) -> None:
    """A platform that re-sends, skips, overlaps and breaks at will; the reader has a prefix of the job at all times."""
    job = [data.draw(st.integers(0, 3)) for _ in range(data.draw(st.integers(0, 12)))]
    machine, got, texts = _machine(), [], []
    machine.start(0.0)
    machine.on_event(_accepted())
    for _ in range(data.draw(st.integers(0, 30))):
        first = data.draw(st.integers(0, len(job)))
        last = data.draw(st.integers(first, len(job)))
        try:
            chunk = machine.on_event(_tokens(first, job[first:last]))
        except UnavailableError as error:
            step = machine.on_failure(error, now_s=0.0, jitter=0.5)
            assert list(step.call.request.token_ids) == got  # type: ignore[attr-defined]
            continue
        if chunk is not None:
            got += chunk.token_ids
            texts.append(chunk.text)
        assert got == job[: len(got)] == machine.token_ids
    machine.on_event(_tokens(len(got), job[len(got) :]))
    machine.on_event(_finished())
    assert machine.result is not None
    assert list(machine.result.token_ids) == job
    assert machine.result.text == "".join(f"<{i}>" for i in job)


def test_only_unavailable_is_retried_and_never_a_call_that_may_act_twice() -> None:
    policy = RetryPolicy()
    down, busy = UnavailableError("x"), InvalidArgumentError("x")
    assert may_retry(down, Safety.SAFE) and may_retry(down, Safety.KEYED)
    assert not may_retry(down, Safety.UNSAFE) and not may_retry(busy, Safety.SAFE)
    delays = [policy.delay_s(down, Safety.SAFE, attempt=n, remaining_s=99, jitter=0.0) for n in range(1, 8)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, None, None]
    assert policy.delay_s(down, Safety.SAFE, attempt=1, remaining_s=0.05, jitter=0.0) is None


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_delays_are_bounded(attempt: int, jitter: float) -> None:
    assert 0.05 <= RetryPolicy().backoff_s(attempt, jitter) <= 2.0


def test_a_status_without_a_word_of_octavo_is_a_broken_connection() -> None:
    assert is_broken(CancelledError("reset")) and not is_broken(CancelledError("job", told=True))
    assert is_broken(UnavailableError("x", told=True)) and not is_broken(DeadlineExceededError("x"))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"prompt": "a", "token_ids": [1]},
        {"prompt": "\ud800"},
        {"prompt": "a", "seed": 2**64},
        {"messages": [{"role": "user"}]},
        {"token_ids": [2**40]},
        {"prompt": "a", "max_tokens": 1.5},
        {"prompt": "a", "logprobs_mode": "cooked"},
        {"prompt": "a", "beam_width": 2, "early_stopping": "soon"},
        {"prompt": "a", "json_object": True, "regex": "a"},
        {"prompt": "a", "json_schema": {"a": object()}},
        {"prompt": "a", "logit_bias": {"x": 1}},
    ],
)
def test_what_has_no_form_in_the_protocol_is_refused_before_it_is_sent(parameters: dict) -> None:
    with pytest.raises(InvalidArgumentError):
        request.generation(**parameters)


def test_unset_parameters_stay_unset() -> None:
    built = request.generation("x", temperature=0.0, stop="end")
    assert built.sampling.HasField("temperature") and not built.sampling.HasField("top_p")
    assert list(built.sampling.stop) == ["end"] and not built.HasField("timeout")
    assert request.generation(token_ids=[]).WhichOneof("input") == "tokens"
    assert request.generation(messages=[]).WhichOneof("input") == "chat"


def test_what_an_answer_follows_and_how_it_is_searched_have_their_forms() -> None:
    built = request.generation("x", json_schema={"type": "object"}, n=2, best_of=4, logit_bias={5: -1.0})
    assert built.structured_output.json_schema == '{"type": "object"}' and (built.n, built.best_of) == (2, 4)
    assert dict(built.sampling.logit_bias) == {5: -1.0} and not built.HasField("beam_search")
    assert list(request.generation("x", choice=["a", "b"]).structured_output.choice.texts) == ["a", "b"]
    assert request.generation("x", json_object=True).structured_output.json_object
    search = request.generation("x", beam_width=4, early_stopping="never").beam_search
    assert (search.width, search.length_penalty) == (4, 1.0)
    assert search.early_stopping == gateway_pb2.EARLY_STOPPING_NEVER
    assert not request.generation("x").HasField("structured_output")
    with pytest.raises(TypeError, match="no parameter 'temprature'"):
        request.generation("x", temprature=1.0)


def test_attaching_to_nothing_is_an_error_that_callers_can_act_on() -> None:
    with pytest.raises(NotFoundError):
        StreamMachine(None, policy=POLICY, resumable=True)
    for token in (-1, 2**31):
        with pytest.raises(InvalidArgumentError):
            StreamMachine(None, policy=POLICY, resumable=True, job_id="job-1", token_ids=[token])


def test_a_time_that_nobody_knows_is_none_and_one_of_zero_is_zero():
    unknown = parsing.usage(common_pb2.Usage(completion_tokens=3))
    assert (unknown.queue_s, unknown.time_to_first_token_s, unknown.total_s) == (None, None, None)
    known = parsing.usage(common_pb2.Usage(queue_time=Duration(), total_time=Duration(seconds=1, nanos=500_000_000)))
    assert (known.queue_s, known.time_to_first_token_s, known.total_s) == (0.0, None, 1.5)
