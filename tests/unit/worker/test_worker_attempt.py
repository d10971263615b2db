"""The result of an attempt has the text that its log gave out, unless a stop string cuts what an earlier one let go."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from fakes.small_tokenizers import MAKERS, bundle_of

from octavo_common.jobs.model import Claimed, Job, JobState
from octavo_common.jobs.spec import GenerationResult, GenerationSpec
from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.engine.types import BeamParams, Delta, FinishReason, SeqId, TokenLogprobs
from octavo_worker.intake.attempt import Attempt, new_attempt

SPEC = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=64)


@pytest.fixture(scope="module", params=sorted(MAKERS))
def tokenizer(request) -> Tokenizer:
    return Tokenizer(bundle_of(MAKERS[request.param]()))


def attempt_of(
    tokenizer: Tokenizer,
    spec: GenerationSpec,
    emitted: tuple[int, ...] = (),
    now: float = 0.0,
    losses: int = 0,
    **times: float,
) -> Attempt:
    values = dict.fromkeys(Job.__dataclass_fields__)
    values.update(
        id=uuid4(),
        fence=1,
        state=JobState.RUNNING,
        cache_salt="",
        priority=0,
        fair_key="acme",
        prompt_ids=tuple(tokenizer.encode("The quick")),
        emitted_ids=emitted,
        losses=losses,
        total_losses=losses,
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
        feed(first, answer[:num_sent])
        sent = tuple(first.log.ids)
        second = attempt_of(tokenizer, spec, sent)
        assert not second.replay()
        result = run(second, answer[len(sent) :])
        assert (result.token_ids, result.text) == (whole.token_ids, whole.text)
        assert second.log.text == result.text


@pytest.mark.parametrize("num_kept", [0, 2])
def test_only_a_job_that_was_lost_without_progress_tells_of_its_first_new_token(tokenizer, num_kept):
    answer = tokenizer.encode("brown fox jumps over", add_special=False)
    for losses in (0, 1):
        attempt = attempt_of(tokenizer, SPEC, tuple(answer[:num_kept]), losses=losses)
        attempt.replay()
        told, numbers = [attempt.clears_itself()], [attempt.num_tokens]
        for token in answer[num_kept:]:
            feed(attempt, [token])
            told.append(attempt.clears_itself())
            numbers.append(attempt.num_tokens)
        first = next(index for index, number in enumerate(numbers) if number > num_kept)
        assert told == [losses > 0 and index == first for index in range(len(told))]


def feed(attempt: Attempt, tokens: Sequence[int], now: float = 0.0, choice: int = 0, **told: Any) -> bool:
    """Tokens as the engine brings them; True when a stop string has ended the answer."""
    attempt.push(Delta(id=SeqId(attempt.request_id, choice), tokens=tuple(tokens), **told), now)
    return attempt.choices[choice].reason is not None


def end(attempt: Attempt, choice: int = 0, reason: FinishReason = FinishReason.LENGTH, score: float | None = None):
    attempt.finish(Delta(id=SeqId(attempt.request_id, choice), finish=reason, score=score))


def run(attempt: Attempt, answer: list[int]):
    for token in answer:
        if feed(attempt, [token]):
            break
    end(attempt)
    assert attempt.log.text == attempt.result().text
    return attempt.result()


def test_a_stop_string_that_began_in_tokens_let_go_earlier_cuts_the_result(tokenizer):
    spec = dataclasses.replace(SPEC, stop=("quick brown",))
    # A reader claims tokens in which the stop string begins: nobody released them, but it has them.
    space = " " if tokenizer.pieces.form.byte_level else ""
    sent, rest = (tuple(tokenizer.encode(text, add_special=False)) for text in ("so quick", f"{space}brown fox"))
    attempt = attempt_of(tokenizer, spec, sent)
    assert not attempt.replay()
    text = attempt.log.text
    for token in rest:
        if feed(attempt, [token]):
            break
    else:
        pytest.fail("the stop string was not found")
    assert "quick" in text
    assert attempt.result().text.strip() == "so"
    assert attempt.result().token_ids[: len(sent)] == sent


def times_of(attempt: Attempt, tokens: list[int]) -> tuple[float | None, float | None, float | None]:
    """Figures of an attempt claimed at 100 whose first step began at 101 and whose tokens come each second from 102."""
    attempt.note(Delta(id=SeqId(attempt.request_id, 0), events=("scheduled",)), 101.0)
    for number, token in enumerate(tokens):
        feed(attempt, [token], 102.0 + number)
    end(attempt)
    usage = attempt.result().usage
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


def told(*logprobs: float, top: int = 0) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(logprob, 2, tuple((n, -float(n)) for n in range(1, top + 1))) for logprob in logprobs)


@pytest.mark.parametrize("changes", [{}, {"echo": True}, {"stop": ("jumps",)}, {"stop": ("x j",)}])
def test_what_is_told_of_tokens_goes_with_them_and_ends_with_them(tokenizer, changes):
    spec = dataclasses.replace(SPEC, logprobs=2, **changes)
    attempt = attempt_of(tokenizer, spec)
    answer = tokenizer.encode("brown fox jumps over é the lazy dog", add_special=False)
    for number, token in enumerate(answer):
        assert len(attempt.log.logprobs_of(0)) == len(attempt.log.ids)
        if feed(attempt, [token], logprobs=told(-float(number), top=2)):
            break
    end(attempt)
    result = attempt.result()
    assert [one.logprob for one in result.logprobs] == [-float(n) for n in range(len(result.token_ids))]
    assert result.logprobs[0].top == ((1, -1.0), (2, -2.0)) and result.logprobs[0].rank == 2
    assert result.logprobs == attempt.log.logprobs_of(0) == attempt.log.read(0).logprobs
    assert attempt.log.read(2).logprobs == result.logprobs[2:]
    # Each token's text is found at its offset.
    offsets = [*(one.text_offset for one in result.logprobs), len(result.text)]
    texts = [result.text[begin:stop] for begin, stop in itertools.pairwise(offsets)]
    assert texts == list(attempt.choices[0].stream.texts)
    assert GenerationResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_what_json_has_no_number_for_is_told_as_the_least(tokenizer):
    attempt = attempt_of(tokenizer, dataclasses.replace(SPEC, logprobs=0))
    tokens = tokenizer.encode("brown fox", add_special=False)[:2]
    feed(attempt, tokens, logprobs=told(-math.inf, math.nan))
    end(attempt)
    assert [one.logprob for one in attempt.result().logprobs] == [-9999.0, -9999.0]


def test_of_tokens_of_an_earlier_attempt_the_result_says_that_nobody_knows(tokenizer):
    answer = tokenizer.encode("brown fox jumps", add_special=False)
    attempt = attempt_of(tokenizer, dataclasses.replace(SPEC, logprobs=1), tuple(answer[:2]))
    attempt.replay()
    for token in answer[2:]:
        feed(attempt, [token], logprobs=told(-1.0, top=1))
    end(attempt)
    known = [one.logprob for one in attempt.result().logprobs]
    assert known == [None, None, *[-1.0] * (len(answer) - 2)]


def test_the_prompts_log_probabilities_go_out_with_the_first_token(tokenizer):
    attempt = attempt_of(tokenizer, dataclasses.replace(SPEC, prompt_logprobs=0))
    prompt = attempt.job.prompt_ids
    for n in range(1, len(prompt)):
        attempt.note_prompt(told(-float(n)))
    token = tokenizer.encode("brown", add_special=False)[-1]
    feed(attempt, [token])
    end(attempt)
    piece = attempt.log.read(0)
    assert [one.logprob for one in piece.prompt_logprobs] == [None, *(-float(n) for n in range(1, len(prompt)))]
    assert attempt.log.read(1).prompt_logprobs == ()
    result = attempt.result()
    assert result.prompt_logprobs == piece.prompt_logprobs and result.logprobs == ()
    text = tokenizer.decode(prompt)
    assert result.prompt_logprobs[0].text_offset == 0
    assert result.prompt_logprobs[-1].text_offset < len(text)


def test_who_reads_a_moved_job_from_the_start_gets_the_prompts_log_probabilities_with_the_first_token(tokenizer):
    answer = tokenizer.encode("brown fox jumps", add_special=False)
    attempt = attempt_of(tokenizer, dataclasses.replace(SPEC, prompt_logprobs=0), tuple(answer[:3]))
    attempt.replay()
    kept = attempt.log.ids
    assert kept and attempt.log.read(0).is_empty
    assert list(attempt.log.read(1).token_ids) == kept[1:]
    changed = attempt.log.changed
    attempt.note_prompt(told(*(-float(n) for n in range(1, len(attempt.job.prompt_ids)))))
    assert changed.is_set()
    piece = attempt.log.read(0)
    assert list(piece.token_ids) == kept and len(piece.prompt_logprobs) == len(attempt.job.prompt_ids)


def test_several_answers_have_texts_stops_and_ends_of_their_own(tokenizer):
    spec = dataclasses.replace(SPEC, n=2, stop=("fox",))
    attempt = attempt_of(tokenizer, spec)
    assert attempt.request(()).num_choices == 2
    for token in tokenizer.encode("brown fox jumps", add_special=False):
        if feed(attempt, [token], choice=0):
            break
    assert not attempt.is_over
    other = tokenizer.encode("lazy dog", add_special=False)
    feed(attempt, other, choice=1)
    end(attempt, 1)
    assert attempt.is_over and not attempt.is_computed
    result = attempt.result()
    assert [choice.finish_reason for choice in result.choices] == ["stop", "length"]
    assert "fox" not in result.text and result.others[0].text == attempt.choices[1].stream.text
    assert result.others[0].token_ids == tuple(other)
    assert result.usage.completion_tokens == len(result.token_ids) + len(other) == attempt.held.num_tokens
    assert attempt.log.read(1, 1).token_ids == tuple(other[1:])
    # It begins anew from its prompt, wherever it goes on.
    assert attempt.emitted_ids == ()
    assert GenerationResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_best_of_several_answers_come_at_the_end_by_their_mean_log_probability(tokenizer):
    spec = dataclasses.replace(SPEC, n=2, best_of=3)
    attempt = attempt_of(tokenizer, spec)
    assert (attempt.request(()).num_choices, attempt.request(()).params.num_logprobs) == (3, 0)
    words = [tokenizer.encode(text, add_special=False) for text in ("brown fox jumps", "lazy", "dog")]
    for choice, (word, logprob) in enumerate(zip(words, (-1.0, -5.0, -0.5), strict=True)):
        feed(attempt, word, choice=choice, logprobs=told(*[logprob] * len(word)))
        assert attempt.log.ids == []
        end(attempt, choice)
    result = attempt.result()
    assert [choice.token_ids for choice in result.choices] == [tuple(words[2]), tuple(words[0])]
    assert [choice.score for choice in result.choices] == [-0.5, -1.0]
    assert result.logprobs == () and result.usage.completion_tokens == sum(map(len, words))
    attempt.publish()
    assert (attempt.log.ids, attempt.log.ids_of(1)) == (words[2], words[0])
    assert attempt.log.text == result.text


def searched(tokenizer: Tokenizer, found: Sequence[tuple[str, float]], **changes: Any) -> GenerationResult:
    """The result of a search that found these texts, in their order."""
    attempt = attempt_of(tokenizer, dataclasses.replace(SPEC, beam_width=4, **changes))
    for number, (text, score) in enumerate(found):
        feed(attempt, tokenizer.encode(text, add_special=False), choice=number)
        end(attempt, number, score=score)
    assert attempt.close_search() and attempt.is_over
    attempt.publish()
    result = attempt.result()
    assert [attempt.log.ids_of(n) for n in range(attempt.spec.n)] == [list(c.token_ids) for c in result.choices]
    return result


FOUND = [("fox. jumps", -1.0), ("fox. lazy", -2.0), ("dog. over", -3.0), ("fox. dog", -4.0)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_beams_that_a_stop_string_cuts_to_one_text_are_one_answer_with_the_better_score(tokenizer, n):
    result = searched(tokenizer, FOUND, stop=(".",), n=n)
    best = {}
    for text, score in FOUND:
        visible = text.split(".")[0]
        best[visible] = max(score, best.get(visible, -math.inf))
    found = sorted(best.items(), key=lambda item: -item[1])[:n]
    # Where that leaves less than was asked for, the rest is empty, as of any search that finds less.
    assert [(c.text.strip(), c.score) for c in result.choices] == found + [("", None)] * (n - len(found))
    assert result.usage.completion_tokens == sum(len(c.token_ids) for c in result.choices)


def test_without_stop_strings_beams_are_what_the_search_found(tokenizer):
    result = searched(tokenizer, [("fox", -1.0), ("fox", -2.0)], n=2)
    assert [(c.text.strip(), c.score) for c in result.choices] == [("fox", -1.0), ("fox", -2.0)]


def test_beams_come_with_their_scores_in_the_order_of_the_search(tokenizer):
    spec = dataclasses.replace(SPEC, n=2, beam_width=4, length_penalty=0.5, early_stopping=None)
    attempt = attempt_of(tokenizer, spec)
    request = attempt.request(())
    assert (request.beam, request.num_choices) == (BeamParams(width=4, length_penalty=0.5, early_stopping=None), 2)
    words = [tokenizer.encode(text, add_special=False) for text in ("brown fox", "lazy")]
    for choice, word in enumerate(words):
        feed(attempt, word, choice=choice)
        end(attempt, choice, FinishReason.STOP, score=-1.5 - choice)
    result = attempt.result()
    assert [(c.token_ids, c.score, c.finish_reason) for c in result.choices] == [
        (tuple(words[0]), -1.5, "stop"),
        (tuple(words[1]), -2.5, "stop"),
    ]
