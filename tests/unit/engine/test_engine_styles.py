"""What sets the two engine styles apart, and that no token depends on them."""

import pytest
from fakes.engines import Bench, make_beams, make_request
from fakes.tiny_executor import expected_output

from octavo_worker.engine.styles import STYLES, MixedSteps, PhasedSteps
from octavo_worker.engine.types import Limits


def rows(bench):
    return {row.id.request: len(row.tokens) for row in bench.executor.plans[-1].rows}


def phased(**settings):
    return Bench(style=PhasedSteps(), **settings)


def test_v0_computes_prompts_whole_and_apart_from_decoding():
    bench = phased(max_chunk_tokens=3, max_batch_tokens=32, num_blocks=16)
    bench.add(make_request("a", range(10), max_tokens=6))
    bench.step()
    assert rows(bench) == {"a": 10}
    bench.step()
    assert rows(bench) == {"a": 1}
    bench.add(make_request("b", range(30, 50), max_tokens=6))
    bench.add(make_request("c", range(60, 63), max_tokens=6))
    bench.step()
    assert rows(bench) == {"b": 20, "c": 3}
    bench.step()
    assert rows(bench) == {"a": 1, "b": 1, "c": 1}


def test_v1_mixes_where_v0_takes_turns():
    bench = Bench(style=MixedSteps(), max_prompt_tokens_beside_decode=4)
    bench.add(make_request("a", range(10), max_tokens=6))
    bench.step()
    bench.add(make_request("b", range(30, 50), max_tokens=6))
    bench.step()
    assert rows(bench) == {"a": 1, "b": 4}


def test_a_whole_prompt_of_any_allowed_length_fits_into_a_step_of_v0():
    limits = Limits(max_batch_tokens=16, max_chunk_tokens=4, max_sequences=4, max_sequence_tokens=100)
    assert MixedSteps().fit(limits) is limits
    fitted = PhasedSteps().fit(limits)
    assert (fitted.max_batch_tokens, fitted.max_chunk_tokens) == (100, None)
    bench = phased(num_blocks=25, max_batch_tokens=8)
    bench.add(make_request("a", [n % 97 for n in range(99)], max_tokens=1))
    bench.step()
    assert rows(bench) == {"a": 99}


def test_prompts_that_do_not_fit_into_one_step_of_v0_take_several():
    bench = phased(num_blocks=16, max_batch_tokens=8)
    for n in range(3):
        bench.add(make_request(str(n), range(20 * n, 20 * n + 30), max_tokens=3, salt=str(n)))
    bench.step()
    assert rows(bench) == {"0": 30, "1": 30}
    bench.run()
    assert all(len(plan.rows) for plan in bench.executor.plans[:-1])


def test_while_anything_is_swapped_out_v0_begins_no_prompt():
    bench = phased(num_blocks=8, num_host_slots=8)
    for n, id in enumerate(("old", "young")):
        bench.add(make_request(id, range(10 * n, 10 * n + 12), max_tokens=16))
    while not bench.outcomes["young"].num_preemptions:
        bench.step()
    bench.add(make_request("new", [77], max_tokens=1))
    begun = []
    while bench.engine.has_work:
        bench.step()
        plan = bench.executor.plans[-1]
        begun += ["young"] * bool(plan.kv.loads) + ["new"] * ("new" in rows(bench))
    assert begun == ["young", "new"]
    bench.assert_empty()


@pytest.mark.parametrize("num_host_slots", [0, 6, 40])
def test_both_styles_give_the_same_tokens(num_host_slots):
    def outcomes(style):
        bench = Bench(num_blocks=12, style=STYLES[style](), num_host_slots=num_host_slots, max_sequences=6)
        for n in range(8):
            bench.add(make_request(f"r{n}", range(n, n + 9), max_tokens=14, temperature=1.0, num_choices=1 + n % 3))
        bench.add(make_beams("beams", range(6), width=3, max_tokens=9))
        bench.run()
        bench.assert_empty()
        return {id: (outcome.tokens, outcome.finish) for id, outcome in bench.choices.items()}

    assert outcomes("v0") == outcomes("v1")
    assert outcomes("v1")["r0", 0][0] == expected_output(
        make_request("r0", range(9), max_tokens=14, temperature=1.0), 1000
    )


def test_v0_lets_those_that_decode_go_on_under_a_flood_of_prompts():
    bench = phased(max_sequences=4, num_blocks=64)
    bench.add(make_request("old", range(5), max_tokens=10))
    for step in range(200):
        bench.add(make_request(f"p{step}", [step % 97], max_tokens=3))
        bench.step()
        if bench.outcomes["old"].finish:
            break
    # Never more steps of prompts in a row than there is room for sequences.
    assert step <= 10 * (4 + 1)


def test_who_came_first_is_computed_again_before_a_younger_one_comes_back_from_host_memory():
    bench = Bench(num_blocks=12, style=PhasedSteps(), num_host_slots=5)
    # The youngest goes to host memory, which then has no room for the second.
    prompts = {"a": range(4), "b": range(1, 13), "c": range(2, 10)}
    requests = [make_request(id, prompt, max_tokens=30) for id, prompt in prompts.items()]
    for request in requests:
        bench.add(request)
    while bench.engine.has_work and bench.outcomes["a"].finish is None:
        bench.step()
    first, second = bench.scheduler._roster.returning
    assert (first.id.request, bool(first.parked)) == ("b", False)
    assert (second.id.request, bool(second.parked)) == ("c", True)
    bench.step()
    assert [row.id.request for row in bench.executor.plans[-1].rows] == ["b"]
    bench.run()
    assert [bench.outcomes[r.id].tokens for r in requests] == [expected_output(r, 48) for r in requests]
    bench.assert_empty()
