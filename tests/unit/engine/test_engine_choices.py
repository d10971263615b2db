"""Several choices of one request: what they share, when a block is copied, and how they end."""

import pytest
from fakes.engines import Bench, make_beams, make_request
from fakes.tiny_executor import TinyExecutor, expected_output, logprob

from octavo_worker.engine.types import AdmissionError, FinishReason, SeqId


def check(bench, request, *, max_tokens=1000):
    for choice in range(request.num_choices):
        outcome = bench.choices[SeqId(request.id, choice)]
        assert outcome.tokens == expected_output(request, max_tokens, choice), choice
        assert outcome.finish is not None


def several(id="a", prompt=(1, 2, 3, 4, 5, 6), *, num=4, max_tokens=9, **params):
    return make_request(id, prompt, num_choices=num, max_tokens=max_tokens, temperature=1.0, **params)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
def test_each_choice_gives_the_tokens_of_brute_force_wherever_the_prompt_ends_in_its_block(length):
    bench = Bench()
    request = several(prompt=range(length))
    bench.add(request)
    bench.run()
    check(bench, request)
    assert len({tuple(bench.choices[SeqId("a", choice)].tokens) for choice in range(4)}) == 4
    bench.assert_empty()


def test_the_prompt_is_computed_once_and_its_blocks_are_shared():
    bench = Bench(block_size=4)
    bench.add(several(prompt=range(14), num=3, max_tokens=5))
    bench.step()
    assert bench.executor.plans[-1].rows[0].draws == (0, 1, 2)
    # Four blocks of prompt, the partial tail among them, and nothing more until one writes.
    assert bench.engine.stats().num_used_blocks == 4
    bench.step()
    (kv,) = [plan.kv for plan in bench.executor.plans[-1:]]
    # Three write into the tail: two copies, and the last keeps it.
    assert len(kv.copies) == 2 and len({source for source, _ in kv.copies}) == 1
    assert bench.engine.stats().num_used_blocks == 6
    bench.run()
    assert sum(len(row.tokens) for plan in bench.executor.plans for row in plan.rows) == 14 + 3 * 4


def test_choices_of_a_prompt_of_whole_blocks_copy_nothing():
    bench = Bench(block_size=4)
    bench.add(several(prompt=range(8), num=3))
    bench.run()
    assert not any(plan.kv.copies for plan in bench.executor.plans)


def test_a_choice_may_end_with_its_first_token_while_others_go_on():
    request = several(num=5, max_tokens=6)
    firsts = [expected_output(request, 1000, choice)[0] for choice in range(5)]
    for ends in ({firsts[0]}, {firsts[2]}, set(firsts[1:]), set(firsts)):
        bench = Bench()
        request = several(num=5, max_tokens=6, stop_token_ids=frozenset(ends))
        bench.add(request)
        bench.run()
        check(bench, request)
        bench.assert_empty()


def test_abort_ends_all_choices_before_and_after_they_fork():
    for num_steps in (0, 1, 2, 4):
        bench = Bench(max_chunk_tokens=4)
        bench.add(several(prompt=range(6)))
        for _ in range(num_steps):
            bench.step()
        bench.abort("a")
        assert [bench.choices[SeqId("a", c)].finish for c in range(4)] == [FinishReason.ABORTED] * 4
        bench.run()
        bench.assert_empty()


def test_a_choice_that_is_aborted_alone_gives_its_blocks_back_and_the_others_go_on():
    bench = Bench(block_size=4)
    request = several(prompt=range(8), num=3, max_tokens=20)
    bench.add(request)
    # Before the fork there is one sequence for all.
    assert bench.abort_choice("a", 1) == [] == bench.abort_choice("nobody", 0)
    for _ in range(6):
        bench.step()
    # Two blocks of prompt for all, and two of each one's own.
    assert bench.engine.stats().num_used_blocks == 8
    bench.abort_choice("a", 0)
    bench.engine.check_integrity()
    assert bench.engine.stats().num_used_blocks == 6
    assert bench.abort_choice("a", 0) == []
    bench.run()
    assert [bench.choices[SeqId("a", c)].finish for c in range(3)] == [FinishReason.ABORTED] + [FinishReason.LENGTH] * 2
    for choice in (1, 2):
        assert bench.choices[SeqId("a", choice)].tokens == expected_output(request, 1000, choice)
    bench.assert_empty()


def test_the_beams_of_a_search_are_not_aborted_one_by_one():
    bench = Bench()
    bench.add(make_beams(width=2))
    bench.step()
    assert bench.abort_choice("a", 0) == [] == bench.abort_choice("a", 1)
    bench.run()
    bench.assert_empty()


def test_a_prompt_that_fails_fails_for_all_choices_and_a_fork_that_fails_fails_alone():
    def failing(ids):
        def fails(plan):
            return any(row.id in ids and row.wants.start != 5 for row in plan.rows)

        return TinyExecutor(num_blocks=64, block_size=4, fails=fails)

    bench = Bench(executor=TinyExecutor(num_blocks=64, block_size=4, fails=lambda plan: bool(plan.rows)))
    bench.add(several())
    bench.run()
    assert [bench.choices[SeqId("a", c)].finish for c in range(4)] == [FinishReason.ERROR] * 4
    bench.assert_empty()

    bench = Bench(executor=failing({SeqId("a", 2)}))
    request = several()
    bench.add(request)
    bench.run()
    assert bench.choices[SeqId("a", 2)].finish is FinishReason.ERROR
    for choice in (0, 1, 3):
        assert bench.choices[SeqId("a", choice)].tokens == expected_output(request, 1000, choice)
    bench.assert_empty()


def test_rows_are_kept_for_choices_that_have_not_forked_yet():
    bench = Bench(max_sequences=4, max_chunk_tokens=2)
    bench.add(several(num=3, prompt=range(6)))
    bench.add(make_request("one", [9], max_tokens=30))
    bench.add(make_request("two", [8], max_tokens=30))
    bench.step()
    assert {row.id.request for row in bench.executor.plans[-1].rows} == {"a", "one"}
    bench.run()
    assert all(len(plan.rows) <= 4 for plan in bench.executor.plans)
    bench.assert_empty()


@pytest.mark.parametrize("num_blocks", [6, 7, 9, 12])
def test_choices_are_preempted_one_by_one_in_a_small_pool(num_blocks):
    bench = Bench(num_blocks=num_blocks, block_size=4)
    requests = [several(id, prompt=range(n, n + 7), num=3, max_tokens=12) for n, id in enumerate("ab")]
    for request in requests:
        bench.add(request)
    bench.run()
    for request in requests:
        check(bench, request, max_tokens=num_blocks * 4)
    assert sum(outcome.num_preemptions for outcome in bench.choices.values()) > 0
    bench.assert_empty()


def test_a_row_whose_copy_was_planned_may_still_lose_its_place():
    # A forced run of tokens in an older sequence takes blocks after the younger choices were planned.
    class Force:
        def forced(self, seq, signals):
            return (5,) * 9 if seq.id.request == "old" and seq.num_output == 2 else ()

    for num_blocks in range(7, 14):
        bench = Bench(num_blocks=num_blocks, block_size=4, exit_policy=Force())
        bench.add(make_request("old", range(4), max_tokens=15))
        request = several("b", prompt=range(20, 25), num=4, max_tokens=6)
        bench.add(request)
        bench.run()
        check(bench, request, max_tokens=num_blocks * 4)
        bench.assert_empty()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (several(num=9), "TOO_MANY_CHOICES"),
        (several(num=2, output=(7,)), "OUTPUT_OF_MANY"),
    ],
)
def test_what_cannot_be_forked_here_is_refused(request_, code):
    bench = Bench(max_sequences=8)
    with pytest.raises(AdmissionError) as error:
        bench.engine.add(request_)
    assert error.value.code == code


def test_no_tokens_are_wanted_of_several_choices():
    bench = Bench()
    bench.add(several(num=3, max_tokens=0))
    assert [bench.choices[SeqId("a", c)].finish for c in range(3)] == [FinishReason.LENGTH] * 3


@pytest.mark.parametrize("length", [6, 8, 60])
def test_a_fork_is_told_by_its_origin_and_brings_nothing_of_what_both_have(length):
    bench = Bench(block_size=4)
    bench.add(several(prompt=range(length), num=3, presence_penalty=1.0))
    bench.run()
    rows = [row for plan in bench.executor.plans for row in plan.rows]
    assert [(row.id.choice, row.history) for row in rows if row.params] == [(0, ())]
    forks = [fork for plan in bench.executor.plans for fork in plan.forks]
    assert forks == [(SeqId("a", 0), SeqId("a", choice)) for choice in (1, 2)]
    # The block that it writes into, whatever it shares.
    assert max(len(row.new_blocks) for row in rows if row.id.choice) == 1


def test_a_fork_that_loses_its_place_before_the_executor_knows_it_is_told_with_its_history_later():
    bench = Bench(num_blocks=6, block_size=4)
    bench.add(several(prompt=range(11), num=4, max_tokens=9, presence_penalty=1.0))
    bench.run()
    rows = [row for plan in bench.executor.plans for row in plan.rows]
    forks = {fork.twin.choice for plan in bench.executor.plans for fork in plan.forks}
    told = {row.id.choice for row in rows if row.params and row.id.choice}
    assert told and forks | told == {1, 2, 3}
    bench.assert_empty()


@pytest.mark.parametrize("chunk", [1, 3, 4, 16])
def test_every_prompt_token_is_scored_once_whatever_is_cached_and_the_chunk(chunk):
    prompt = list(range(10))
    bench = Bench(block_size=4, max_chunk_tokens=chunk)
    bench.add(make_request("first", prompt, max_tokens=3))
    bench.run()
    bench.add(several("a", prompt, num=2, num_logprobs=0, num_prompt_logprobs=1))
    bench.run()
    outcome = bench.outcomes["a"]
    assert [told.logprob for told in outcome.prompt_logprobs] == [logprob(prompt[:i], prompt[i]) for i in range(1, 10)]
    assert outcome.num_cached == 0
    assert [told.rank for told in outcome.logprobs] == outcome.tokens
    assert not bench.choices[SeqId("a", 1)].prompt_logprobs
    assert len(bench.choices[SeqId("a", 1)].logprobs) == 9


def test_prompt_tokens_are_scored_once_although_the_sequence_is_preempted():
    bench = Bench(num_blocks=8, max_chunk_tokens=3, max_prompt_tokens_beside_decode=3)
    prompt = list(range(40, 58))
    bench.add(make_request("old", range(4), max_tokens=24))
    bench.step()
    bench.add(make_request("young", prompt, max_tokens=9, num_prompt_logprobs=0))
    bench.run()
    assert bench.outcomes["young"].num_preemptions > 0
    scores = [told.logprob for told in bench.outcomes["young"].prompt_logprobs]
    assert scores == [logprob(prompt[:i], prompt[i]) for i in range(1, 18)]


def test_earlier_output_is_not_scored_as_prompt():
    bench = Bench(max_chunk_tokens=4)
    request = make_request("a", range(6), max_tokens=9, num_prompt_logprobs=0)
    whole = expected_output(request, 1000)
    bench.add(make_request("a", range(6), output=whole[:5], max_tokens=9, num_prompt_logprobs=0))
    bench.run()
    assert bench.outcomes["a"].tokens == whole
    assert len(bench.outcomes["a"].prompt_logprobs) == 5
