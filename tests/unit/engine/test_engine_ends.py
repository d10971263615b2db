"""How sequences end: stop rules, limits, refusals, and aborts at every stage."""

import pytest
from fakes.engines import Bench, make_request
from fakes.tiny_executor import expected_output

from octavo_worker.engine.types import AdmissionError, FinishReason, SeqId


def rows(bench):
    return {row.id.request: len(row.tokens) for row in bench.executor.plans[-1].rows}


def warm(bench, *ids, max_tokens=100):
    for index, id in enumerate(ids):
        bench.add(make_request(id, [index], max_tokens=max_tokens))
    bench.step()


def test_stop_tokens_end_the_sequence_and_are_its_last_token():
    request = make_request(prompt=range(5), max_tokens=30)
    tokens = expected_output(request, 1000)
    stop = tokens[7]
    bench = Bench()
    bench.add(make_request(prompt=range(5), max_tokens=30, stop_token_ids=frozenset({stop})))
    bench.run()
    assert bench.outcomes["a"].tokens == tokens[: tokens.index(stop) + 1]
    assert bench.outcomes["a"].finish is FinishReason.STOP


def test_the_longest_sequence_ends_with_length_and_fills_the_pool():
    bench = Bench(num_blocks=4, block_size=4)
    bench.add(make_request(prompt=range(3), max_tokens=1000))
    bench.run()
    assert len(bench.outcomes["a"].tokens) == 13
    assert bench.outcomes["a"].finish is FinishReason.LENGTH


def test_a_prompt_of_the_limit_minus_one_gives_one_token():
    bench = Bench(num_blocks=4, block_size=4)
    bench.add(make_request(prompt=range(15), max_tokens=1000))
    bench.run()
    assert len(bench.outcomes["a"].tokens) == 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (make_request("new", range(16)), "PROMPT_TOO_LONG"),
        (make_request("new", ()), "EMPTY_PROMPT"),
        (make_request("here", [1]), "DUPLICATE_REQUEST"),
    ],
)
def test_what_can_never_run_is_refused_with_a_code(request_, code):
    bench = Bench(num_blocks=4, block_size=4)
    bench.add(make_request("here", [1]))
    with pytest.raises(AdmissionError) as error:
        bench.engine.add(request_)
    assert error.value.code == code
    bench.run()
    bench.assert_empty()


def test_earlier_output_goes_on_where_it_stopped_and_counts_to_max_tokens():
    whole = make_request(prompt=range(9), max_tokens=12)
    tokens = expected_output(whole, 1000)
    bench = Bench()
    bench.add(make_request(prompt=range(9), output=tokens[:5], max_tokens=12))
    bench.run()
    assert bench.outcomes["a"].tokens == tokens
    assert "first_token" not in bench.outcomes["a"].events


@pytest.mark.parametrize(
    ("output", "max_tokens", "stop", "reason"),
    [
        ((4, 5), 2, (), FinishReason.LENGTH),
        ((4, 5), 9, (5,), FinishReason.STOP),
        ((4, 5), 2, (5,), FinishReason.STOP),
        ((4, 5, 6), 9, (4,), FinishReason.STOP),
        (tuple(range(13)), 99, (), FinishReason.LENGTH),
        ((), 0, (), FinishReason.LENGTH),
    ],
)
def test_the_stop_rules_are_applied_to_earlier_output_first(output, max_tokens, stop, reason):
    bench = Bench(num_blocks=4, block_size=4)
    bench.add(make_request(prompt=range(3), output=output, max_tokens=max_tokens, stop_token_ids=frozenset(stop)))
    assert bench.outcomes["a"].finish is reason
    assert bench.outcomes["a"].tokens == list(output)
    bench.assert_empty()


def test_abort_gives_everything_back_at_once_whatever_the_stage():
    bench = Bench(num_blocks=8, max_sequences=2, max_chunk_tokens=3)
    bench.add(make_request("decoding", [1], max_tokens=50))
    bench.step()
    bench.add(make_request("mid_prompt", range(20), max_tokens=5))
    bench.add(make_request("queued", [3]))
    bench.step()
    for id in ("queued", "mid_prompt", "decoding"):
        bench.abort(id)
        assert bench.outcomes[id].finish is FinishReason.ABORTED
        bench.engine.check_integrity()
    assert bench.engine.stats().num_used_blocks == 0
    assert bench.engine.abort("queued") == bench.engine.abort("unknown") == []
    bench.run()
    bench.assert_empty()


def test_an_id_may_come_back_right_after_its_abort():
    bench = Bench()
    bench.add(make_request("a", range(9), max_tokens=9))
    bench.step()
    bench.abort("a")
    again = make_request("a", range(30, 40), max_tokens=9)
    bench.add(again)
    bench.run()
    assert bench.outcomes["a"].tokens == expected_output(again, 1000)


def test_what_is_aborted_between_plan_and_commit_is_left_out_of_the_commit():
    bench = Bench()
    for id in "ab":
        bench.add(make_request(id, [ord(id)]))
    plan = bench.scheduler.plan()
    result = bench.executor.run(plan)
    bench.scheduler.abort("a")
    assert [delta.id for delta in bench.scheduler.commit(plan, result)] == [SeqId("b", 0)]
    bench.engine.check_integrity()
