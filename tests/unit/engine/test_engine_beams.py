"""Beam search: against all sequences there are, against a naive one that scores from scratch, and in the engine."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from fakes.engines import Bench, make_beams, make_request
from fakes.naive_beams import expected_beams, naive_beams, tiny_after
from fakes.tiny_executor import TinyExecutor, best_tokens, expected_output, logprob

from octavo_worker.engine.beams import BeamSearch
from octavo_worker.engine.types import AdmissionError, BeamParams, FinishReason, SeqId


def random_model(num_tokens, seed):
    """Log-probabilities of the next token after each prefix, drawn once."""
    drawn = {}

    def after(prefix):
        if prefix not in drawn:
            pick = random.Random(f"{seed} {prefix}")
            weights = [pick.random() ** 3 + 1e-3 for _ in range(num_tokens)]
            drawn[prefix] = [math.log(weight / sum(weights)) for weight in weights]
        return drawn[prefix]

    return after


def total(after, tokens):
    return sum(after(tokens[:index])[token] for index, token in enumerate(tokens))


def search(after, *, width, max_tokens, stop=(), **params):
    found = BeamSearch(BeamParams(width=width, **params), max_tokens=max_tokens, stop_token_ids=frozenset(stop))
    beams = [()]
    while not found.is_done:
        candidates = []
        for beam in beams:
            pairs = sorted(enumerate(after(beam)), key=lambda pair: -pair[1])
            candidates.append(pairs[: found.num_candidates])
        beams = [(*beams[extension.parent], extension.token) for extension in found.advance(candidates)]
    return found.hypotheses


@pytest.mark.parametrize("seed", range(20))
def test_width_16_finds_the_best_of_all_64_sequences_of_three_tokens(seed):
    after = random_model(4, seed)
    found = search(after, width=16, max_tokens=3)
    everything = sorted(itertools.product(range(4), repeat=3), key=lambda tokens: -total(after, tokens))
    assert len(everything) == 64
    assert [hypothesis.tokens for hypothesis in found] == everything[:16]
    assert found[0].score == pytest.approx(total(after, everything[0]) / 3)


@pytest.mark.parametrize("early_stopping", [True, False, None])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -0.5])
@pytest.mark.parametrize(("width", "stop"), [(1, ()), (2, ()), (2, (0,)), (3, (1, 2)), (4, (0, 1, 2))])
def test_the_search_is_that_of_a_naive_one_that_scores_from_scratch(width, stop, length_penalty, early_stopping):
    for seed in range(12):
        after = random_model(6, seed)
        rules = {"length_penalty": length_penalty, "early_stopping": early_stopping}
        found = search(after, width=width, max_tokens=7, stop=stop, **rules)
        expected = naive_beams(after, width=width, max_tokens=7, stop=stop, **rules)
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for score, _ in expected])
        for hypothesis in found:
            ends = FinishReason.STOP if hypothesis.tokens[-1] in stop else FinishReason.LENGTH
            assert hypothesis.finish is ends


def test_width_1_is_greedy():
    after = random_model(9, 3)
    tokens = ()
    for _ in range(6):
        tokens = (*tokens, max(range(9), key=lambda token: after(tokens)[token]))
    assert [hypothesis.tokens for hypothesis in search(after, width=1, max_tokens=6)] == [tokens]


def test_forbidden_tokens_are_never_taken_and_a_dead_end_gives_what_there_is():
    found = BeamSearch(BeamParams(width=2), max_tokens=5, stop_token_ids=frozenset())
    assert len(found.advance([[(1, -0.5), (2, -math.inf)]])) == 1
    assert found.advance([[(3, -math.inf)]]) == [] and found.is_done
    assert [hypothesis.tokens for hypothesis in found.hypotheses] == [(1,)]


def test_log_probabilities_of_a_hypothesis_add_up_to_its_score():
    found = BeamSearch(BeamParams(width=2), max_tokens=2, stop_token_ids=frozenset(), num_logprobs=1)
    found.advance([[(5, -0.1), (6, -0.2), (7, -4.0)]])
    found.advance([[(5, -1.0), (6, -1.5)], [(8, -0.3), (9, -2.0)]])
    best = found.hypotheses[0]
    assert best.tokens == (6, 8)
    assert [(told.logprob, told.rank, told.top) for told in best.logprobs] == [
        (-0.2, 2, ((5, -0.1),)),
        (-0.3, 1, ((8, -0.3),)),
    ]


# In the engine


def check(bench, request, *, num_blocks=64):
    expected = expected_beams(request, bench.limits, num_blocks=num_blocks, block_size=4)
    for place, (score, tokens) in enumerate(expected):
        outcome = bench.choices[SeqId(request.id, place)]
        assert (tuple(outcome.tokens), outcome.score) == (tokens, pytest.approx(score)), place
        assert outcome.finish in (FinishReason.STOP, FinishReason.LENGTH)
    assert SeqId(request.id, len(expected)) not in bench.choices


@pytest.mark.parametrize("length", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_beams_in_the_engine_are_those_of_the_naive_search(length, width):
    bench = Bench()
    request = make_beams(prompt=range(length), width=width, max_tokens=7, stop_token_ids=frozenset({3, 50, 61}))
    bench.add(request)
    bench.run()
    check(bench, request)
    bench.assert_empty()


def test_beams_tell_their_tokens_at_the_end_and_their_prompt_as_it_is_computed():
    bench = Bench(max_chunk_tokens=4)
    bench.add(make_beams(prompt=range(6), width=2, max_tokens=3, num_logprobs=1, num_prompt_logprobs=0))
    deltas = []
    while bench.engine.has_work:
        deltas += bench.step()
    assert [delta.num_prompt_tokens for delta in deltas] == [4, 2, 0, 0, 0]
    assert [delta.events for delta in deltas if delta.events] == [("scheduled",), ("first_token",)]
    first, second = deltas[-2:]
    assert (first.id, second.id) == (SeqId("a", 0), SeqId("a", 1))
    assert first.score > second.score
    assert len(first.logprobs) == 3 and first.logprobs[0].top
    assert sum(told.logprob for told in first.logprobs) / 3 == pytest.approx(first.score)
    assert len(bench.outcomes["a"].prompt_logprobs) == 5


def test_four_beams_over_a_long_prompt_use_less_than_two_fifths_of_four_copies():
    bench = Bench(num_blocks=256, block_size=16, max_batch_tokens=512, max_sequences=8)
    bench.add(make_beams(prompt=[i % 97 for i in range(512)], width=4, max_tokens=64, length_penalty=0.0))
    most = 0
    while bench.engine.has_work:
        bench.step()
        most = max(most, bench.engine.stats().num_used_blocks)
    assert most < 0.4 * 4 * (512 + 64) // 16
    bench.assert_empty()


@pytest.mark.parametrize("num_host_slots", [0, 5, 100])
@pytest.mark.parametrize("num_blocks", [10, 12, 16])
def test_a_search_is_preempted_as_a_whole_and_finds_the_same(num_blocks, num_host_slots):
    for seed in range(4):
        bench = Bench(num_blocks=num_blocks, block_size=4, num_host_slots=num_host_slots, max_chunk_tokens=5)
        older = make_request("old", range(50, 50 + 3 * seed), max_tokens=20) if seed else None
        if older:
            bench.add(older)
        request = make_beams("b", prompt=range(5), width=3, max_tokens=9, length_penalty=0.0)
        bench.add(request)
        bench.add(make_beams("c", prompt=range(60, 64), width=2, max_tokens=6))
        while bench.engine.has_work:
            bench.step()
            rows = [row.id.request for row in bench.executor.plans[-1].rows]
            assert rows.count("b") in (0, 1, 3)
        check(bench, request, num_blocks=num_blocks)
        if older:
            assert bench.outcomes["old"].tokens == expected_output(older, num_blocks * 4)
        bench.assert_empty()


def test_a_preempted_search_computes_again_only_what_its_beams_have_in_common():
    bench = Bench(num_blocks=12, block_size=4)
    old = make_request("old", range(60, 72), max_tokens=30)
    bench.add(old)
    request = make_beams("b", prompt=range(8), width=3, max_tokens=12, length_penalty=0.0)
    bench.add(request)
    bench.run()
    assert bench.outcomes["b"].num_preemptions > 0
    check(bench, request, num_blocks=12)
    # Whoever comes back has the candidates of earlier steps already: none is asked for twice.
    asked = [row.wants for plan in bench.executor.plans for row in plan.rows if row.num_candidates]
    assert len(asked) == len(set(asked)) * 3 - 2


def test_abort_ends_a_search_at_every_stage():
    for num_steps in range(6):
        bench = Bench(max_chunk_tokens=4)
        bench.add(make_beams(prompt=range(6), width=3, max_tokens=9))
        for _ in range(num_steps):
            bench.step()
        bench.abort("a")
        assert bench.outcomes["a"].finish is FinishReason.ABORTED
        assert len(bench.choices) == 1
        bench.run()
        bench.assert_empty()


def test_a_row_that_fails_takes_its_search_with_it_and_nobody_else():
    def fails(plan):
        return any(row.id == SeqId("a", 1) and row.start > 8 for row in plan.rows)

    bench = Bench(executor=TinyExecutor(num_blocks=64, block_size=4, fails=fails))
    bench.add(make_beams(prompt=range(6), width=3, max_tokens=9))
    other = make_beams("b", prompt=range(7), width=2, max_tokens=9)
    bench.add(other)
    bench.run()
    assert bench.outcomes["a"].finish is FinishReason.ERROR
    assert "planted failure" in bench.outcomes["a"].error
    check(bench, other)
    bench.assert_empty()


def test_beams_that_fit_only_side_by_side_for_a_while_end_with_length():
    bench = Bench(num_blocks=9, block_size=4)
    request = make_beams(prompt=range(6), width=4, max_tokens=1000)
    bench.add(request)
    bench.run()
    # One block of prompt is shared, and of the other eight each beam has two.
    assert len(bench.outcomes["a"].tokens) == 6
    assert bench.outcomes["a"].finish is FinishReason.LENGTH
    bench.assert_empty()


def test_beams_that_never_fit_side_by_side_are_refused():
    bench = Bench(num_blocks=5, block_size=4, max_sequences=8)
    for request, code in (
        (make_beams(prompt=range(7), width=5), "PROMPT_TOO_LONG"),
        (make_beams(prompt=[1], width=9), "TOO_MANY_CHOICES"),
    ):
        with pytest.raises(AdmissionError) as error:
            bench.engine.add(request)
        assert error.value.code == code


def test_a_vocabulary_smaller_than_the_width_fills_the_beams_as_it_can():
    class Small(TinyExecutor):
        def _run_row(self, row, written):
            result = super()._run_row(row, written)
            context = self._read(self._tables[row.id], row.start + len(row.tokens))
            four = [(token, logprob(context, token)) for token in range(4)]
            return type(result)(candidates=tuple(sorted(four, key=lambda pair: -pair[1])))

    bench = Bench(executor=Small(num_blocks=64, block_size=4), max_sequences=16)
    bench.add(make_beams(prompt=[1, 2], width=16, max_tokens=3))
    bench.run()
    after = tiny_after([1, 2])
    best = sorted(itertools.product(range(4), repeat=3), key=lambda tokens: -total(after, tokens))[:16]
    assert [tuple(bench.choices[SeqId("a", place)].tokens) for place in range(16)] == best
    bench.assert_empty()


class DeadEnds(TinyExecutor):
    """No token may follow what ``is_dead`` says, as rules can have it."""

    def __init__(self, is_dead):
        super().__init__(num_blocks=64, block_size=4)
        self.is_dead = is_dead

    def _run_row(self, row, written):
        result = super()._run_row(row, written)
        context = self._read(self._tables[row.id], row.start + len(row.tokens))
        return replace(result, candidates=()) if row.num_candidates and self.is_dead(context[2:]) else result


def test_a_beam_that_cannot_go_on_leaves_its_search_to_the_others():
    prompt = [1, 2]
    best = best_tokens(prompt, 1)[0][0]
    bench = Bench(executor=DeadEnds(lambda output: list(output) == [best]))
    bench.add(make_beams(prompt=prompt, width=3, max_tokens=4))
    bench.run()
    for place in range(3):
        found = bench.choices[SeqId("a", place)]
        assert (found.finish, found.error) == (FinishReason.LENGTH, None)
        assert len(found.tokens) == 4 and found.tokens[0] != best
    bench.assert_empty()


def test_a_search_of_which_no_beam_can_go_on_gives_what_there_is():
    bench = Bench(executor=DeadEnds(lambda output: len(output) == 2))
    bench.add(make_beams(prompt=[1, 2], width=3, max_tokens=4))
    bench.run()
    found = [bench.choices[SeqId("a", place)] for place in range(3)]
    assert [(len(one.tokens), one.finish, one.error) for one in found] == [(2, FinishReason.STOP, None)] * 3
    bench.assert_empty()


def test_no_tokens_are_wanted_of_a_search():
    bench = Bench()
    bench.add(make_beams(max_tokens=0))
    assert bench.outcomes["a"].finish is FinishReason.LENGTH
    assert best_tokens([1], 2)[0][1] > best_tokens([1], 2)[1][1]
