import pytest
from fakes.engines import Bench, make_request
from fakes.tiny_executor import TinyExecutor, expected_output, next_token

from octavo_worker.engine.plan import Draft
from octavo_worker.engine.queueing import PriorityQueue
from octavo_worker.engine.types import FinishReason, Limits


def rows(bench):
    return {row.id.request: len(row.tokens) for row in bench.executor.plans[-1].rows}


def warm(bench, *ids, max_tokens=100):
    for index, id in enumerate(ids):
        bench.add(make_request(id, [index], max_tokens=max_tokens))
    bench.step()


def test_a_single_request_gives_the_tokens_of_brute_force_and_its_blocks_back():
    bench = Bench()
    request = make_request(prompt=range(10), max_tokens=20)
    bench.add(request)
    bench.run()
    assert bench.outcomes["a"].tokens == expected_output(request, bench.limits.max_sequence_tokens)
    assert bench.outcomes["a"].finish is FinishReason.LENGTH
    assert bench.outcomes["a"].events == ["scheduled", "first_token"]
    bench.assert_empty()


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 8, None])
def test_the_size_of_chunks_changes_no_token(chunk):
    bench = Bench(max_chunk_tokens=chunk)
    request = make_request(prompt=range(21), max_tokens=6)
    bench.add(request)
    bench.run()
    assert bench.outcomes["a"].tokens == expected_output(request, 1000)


def test_a_chunk_in_the_middle_of_a_prompt_wants_no_logits():
    bench = Bench(max_chunk_tokens=4)
    bench.add(make_request(prompt=range(9), max_tokens=1))
    wants = []
    while bench.engine.has_work:
        bench.step()
        wants += [list(row.wants) for row in bench.executor.plans[-1].rows]
    assert wants == [[], [], [8]]


def test_while_anything_decodes_prompts_get_their_small_budget():
    bench = Bench(max_batch_tokens=32, max_prompt_tokens_beside_decode=5)
    warm(bench, "d1", "d2")
    bench.add(make_request("p1", range(3), max_tokens=1))
    bench.add(make_request("p2", range(50, 80), max_tokens=1))
    bench.step()
    assert rows(bench) == {"d1": 1, "d2": 1, "p1": 3, "p2": 2}
    bench.step()
    assert rows(bench) == {"d1": 1, "d2": 1, "p2": 5}


def test_resumed_requests_get_the_whole_budget_until_their_streams_go_on():
    bench = Bench(max_batch_tokens=32, max_prompt_tokens_beside_decode=5)
    warm(bench, "d1", "d2")
    bench.add(make_request("r1", range(18), output=(7, 8), max_tokens=9))
    bench.add(make_request("r2", range(50, 68), output=(9,), max_tokens=9))
    bench.add(make_request("p", range(80, 92), max_tokens=1))
    bench.step()
    assert rows(bench) == {"d1": 1, "d2": 1, "r1": 20, "r2": 10}
    bench.step()
    assert rows(bench) == {"d1": 1, "d2": 1, "r1": 1, "r2": 9}
    bench.step()
    assert rows(bench) == {"d1": 1, "d2": 1, "r1": 1, "r2": 1, "p": 5}


def test_with_nothing_decoding_prompts_get_the_whole_budget():
    bench = Bench(max_batch_tokens=32, max_prompt_tokens_beside_decode=5)
    bench.add(make_request("p1", range(40), max_tokens=1))
    bench.step()
    assert rows(bench) == {"p1": 32}


def test_running_prompts_come_before_waiting_ones():
    bench = Bench(max_batch_tokens=10, max_prompt_tokens_beside_decode=10)
    bench.add(make_request("p1", range(18), max_tokens=2))
    bench.step()
    bench.add(make_request("p2", range(50, 60), max_tokens=2))
    bench.step()
    assert rows(bench) == {"p1": 8, "p2": 2}


def test_the_head_of_the_line_blocks_smaller_ones_behind_it():
    bench = Bench(num_blocks=8)
    bench.add(make_request("holds", range(20), max_tokens=8))
    bench.step()
    bench.add(make_request("large", range(100, 120)))
    bench.add(make_request("small", [7]))
    bench.step()
    assert bench.engine.stats().num_waiting == 2
    bench.run()
    assert all(outcome.finish is FinishReason.LENGTH for outcome in bench.outcomes.values())


def test_no_more_sequences_run_than_the_limit():
    bench = Bench(max_sequences=2)
    for id in "abc":
        bench.add(make_request(id, [ord(id)], max_tokens=3))
    bench.step()
    assert (bench.engine.stats().num_running, bench.engine.stats().num_waiting) == (2, 1)


def test_the_youngest_is_preempted_and_a_step_that_preempts_admits_nobody():
    bench = Bench(num_blocks=8, max_sequences=4)
    requests = [make_request(id, range(10 * n, 10 * n + 12), max_tokens=16) for n, id in enumerate(("old", "young"))]
    for request in requests:
        bench.add(request)
    while not bench.outcomes["young"].num_preemptions:
        bench.add(make_request(f"later{bench.engine.stats().step}", [99], max_tokens=1))
        bench.step()
        stats = bench.engine.stats()
        if stats.num_preempted:
            assert not any(plan_row.params for plan_row in bench.executor.plans[-1].rows)
    bench.run()
    for request in requests:
        assert bench.outcomes[request.id].tokens == expected_output(request, bench.limits.max_sequence_tokens)
    assert bench.outcomes["old"].num_preemptions == 0
    assert bench.outcomes["young"].events[:4] == ["scheduled", "first_token", "preempted", "resumed"]
    bench.assert_empty()


def test_a_row_that_was_planned_already_is_taken_out_when_it_is_preempted():
    # Both are due a new block in one step and one is left. The decode row is planned first, then an older row with
    # forced tokens (planned in the second pass) needs more.
    class ForceOld:
        def forced(self, seq, signals):
            return (5,) * 9 if seq.id.request == "old" and seq.num_output == 2 else ()

    bench = Bench(num_blocks=6, max_sequences=2, exit_policy=ForceOld())
    bench.add(make_request("old", range(4), max_tokens=19))
    bench.add(make_request("young", range(20, 30), max_tokens=8))
    bench.run()
    assert bench.outcomes["young"].num_preemptions >= 1
    assert bench.outcomes["old"].tokens[2:11] == [5] * 9
    assert bench.outcomes["young"].tokens == expected_output(make_request(prompt=range(20, 30), max_tokens=8), 24)
    bench.assert_empty()


def test_larger_priorities_run_first_and_age_lets_everyone_run():
    bench = Bench(max_sequences=1, queue=PriorityQueue(steps_per_level=4))
    bench.add(make_request("low", [1], priority=0, max_tokens=1))
    order = []
    for step in range(30):
        bench.add(make_request(f"high{step}", [2], priority=3, max_tokens=1))
        order += [delta.id.request for delta in bench.step() if delta.finish]
    # Three levels of four steps: those that arrive later than that do not overtake.
    assert order.index("low") == 12


def test_the_lowest_priority_is_preempted_even_if_it_is_older():
    bench = Bench(num_blocks=8, queue=PriorityQueue())
    bench.add(make_request("low", range(12), max_tokens=16, priority=-1))
    bench.add(make_request("high", range(20, 32), max_tokens=16, priority=1))
    bench.run()
    assert bench.outcomes["high"].num_preemptions == 0
    assert bench.outcomes["low"].num_preemptions > 0


def test_drafts_change_no_token_and_fill_what_the_budget_leaves():
    def guess(context, params):
        right = next_token(context, params)
        return Draft.chain((right, next_token([*context, right], params), 96 - right))

    executor = TinyExecutor(num_blocks=64, block_size=4, propose=guess, lookahead=3)
    bench = Bench(executor=executor, max_batch_tokens=8)
    requests = [make_request(id, [n, n + 1], max_tokens=23) for n, id in enumerate("abcde")]
    for request in requests:
        bench.add(request)
    num_steps = bench.run()
    for request in requests:
        assert bench.outcomes[request.id].tokens == expected_output(request, 1000)
    assert all(sum(len(row.tokens) + len(row.draft) for row in plan.rows) <= 8 for plan in bench.executor.plans)
    assert num_steps < 23 + 5
    bench.assert_empty()


def test_tokens_after_a_stop_in_an_accepted_draft_are_dropped():
    def guess(context, params):
        tokens = []
        for _ in range(4):
            tokens.append(next_token([*context, *tokens], params))
        return Draft.chain(tuple(tokens))

    executor = TinyExecutor(num_blocks=64, block_size=4, propose=guess, lookahead=4)
    free = expected_output(make_request(prompt=range(5), max_tokens=40), 1000)
    for stop in {free[2], free[4], free[9]}:
        bench = Bench(executor=executor)
        request = make_request(prompt=range(5), max_tokens=40, stop_token_ids=frozenset({stop}))
        bench.add(request)
        bench.run()
        assert bench.outcomes["a"].tokens == expected_output(request, 1000)
        bench.assert_empty()


def test_the_head_of_a_draft_is_a_tree_again():
    draft = Draft(tokens=(5, 6, 7, 8), parents=(-1, -1, 0, 2))
    assert draft.head(3) == Draft(tokens=(5, 6, 7), parents=(-1, -1, 0))
    assert draft.head(9) is draft
    assert Draft.chain((5, 6)) == Draft(tokens=(5, 6), parents=(-1, 0))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_sequences": 0},
        {"max_sequence_tokens": 1},
        {"max_prompt_tokens_beside_decode": 0},
        {"max_chunk_tokens": 0},
        {"max_batch_tokens": 3, "max_sequences": 4},
    ],
)
def test_limits_under_which_a_row_could_starve_are_refused(limits):
    with pytest.raises(ValueError):
        Limits(**{"max_sequence_tokens": 64, **limits})


def test_a_pool_smaller_than_the_longest_sequence_is_refused():
    with pytest.raises(ValueError, match="smaller than one sequence"):
        Bench(num_blocks=2, block_size=4, max_sequence_tokens=9)


def test_equal_histories_give_equal_plans():
    def plans():
        bench = Bench(num_blocks=10, max_sequences=4, max_batch_tokens=16)
        for n in range(12):
            bench.add(make_request(str(n), range(n % 3, n % 3 + 7), max_tokens=9))
        bench.run()
        return bench.executor.plans

    assert plans() == plans()
