import pytest
from fakes.engines import Bench, make_beams, make_request
from fakes.tiny_executor import TinyExecutor, expected_output

from octavo_worker.engine.plan import KVDone, KVOps, RowResult, StepResult
from octavo_worker.engine.ports import LocalKV
from octavo_worker.engine.types import FinishReason, RuleFault
from octavo_worker.verify.context import GrammarStuck


def executor_failing_on(*ids, num_blocks=64, block_size=4):
    def fails(plan):
        return any(row.id.request in ids for row in plan.rows)

    return TinyExecutor(num_blocks=num_blocks, block_size=block_size, fails=fails)


@pytest.mark.parametrize("num_requests", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("bad", [("r0",), ("r1", "r2")])
def test_rows_that_raise_fail_alone_and_the_others_never_notice(num_requests, bad):
    bench = Bench(executor=executor_failing_on(*bad))
    requests = [make_request(f"r{n}", [n, n + 1], max_tokens=6) for n in range(num_requests)]
    for request in requests:
        bench.add(request)
    bench.run()
    for request in requests:
        outcome = bench.outcomes[request.id]
        if request.id in bad:
            assert outcome.finish is FinishReason.ERROR
            assert outcome.error == "RuntimeError: planted failure"
        else:
            assert outcome.tokens == expected_output(request, 1000)
            assert outcome.error is None
    bench.assert_empty()


class Panic(BaseException):
    """As native code raises it."""


@pytest.mark.parametrize(
    ("planted", "error", "refusal"),
    [(Panic("at once"), "Panic: at once", ""), (GrammarStuck("limits"), "limits", "GRAMMAR_STUCK")],
)
def test_panics_and_broken_rules_end_their_row_alone(planted, error, refusal):
    def fails(plan):
        if any(row.id.request == "bad" for row in plan.rows):
            raise planted

    bench = Bench(executor=TinyExecutor(num_blocks=64, block_size=4, fails=fails))
    good = make_request("good", [1, 2], max_tokens=4)
    bench.add(good)
    bench.add(make_request("bad", [3, 4], max_tokens=4))
    told = []
    while bench.engine.has_work:
        told += bench.engine.step()
    assert [(d.error, d.refusal) for d in told if d.id.request == "bad"] == [(error, refusal)]
    tokens = [token for delta in told if delta.id.request == "good" for token in delta.tokens]
    assert tuple(tokens) == tuple(expected_output(good, 1000))
    bench.assert_empty()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_wants_the_process_to_end_is_not_held_up(stop):
    def fails(plan):
        raise stop

    bench = Bench(executor=TinyExecutor(num_blocks=64, block_size=4, fails=fails))
    bench.add(make_request("a", [1, 2]))
    with pytest.raises(stop):
        bench.engine.step()


def test_what_is_gone_is_told_even_when_the_only_row_fails():
    bench = Bench(executor=executor_failing_on("bad"))
    bench.add(make_request("a", [1], max_tokens=50))
    bench.step()
    bench.abort("a")
    bench.add(make_request("bad", [2]))
    bench.step()
    assert not bench.executor.known
    bench.run()
    bench.assert_empty()


def test_what_is_gone_is_told_once_although_the_step_is_repeated_in_parts():
    executor = executor_failing_on("bad")
    bench = Bench(executor=executor)
    for id in ("a", "b"):
        bench.add(make_request(id, [ord(id)], max_tokens=20))
    bench.step()
    bench.abort("a")
    # The id comes back in the very plan that forgets it, and that plan is run in parts.
    again = make_request("a", range(40, 45), max_tokens=5)
    bench.add(again)
    bench.add(make_request("bad", [3]))
    bench.run()
    assert bench.outcomes["a"].tokens == expected_output(again, 1000)
    assert bench.outcomes["bad"].finish is FinishReason.ERROR


def test_an_executor_that_fails_without_rows_is_broken_and_says_so():
    executor = TinyExecutor(num_blocks=8, block_size=4, fails=lambda plan: bool(plan.gone))
    bench = Bench(num_blocks=8, executor=executor)
    bench.add(make_request("a", [1], max_tokens=1))
    bench.step()
    with pytest.raises(RuntimeError, match="planted"):
        bench.step()


class Answering(TinyExecutor):
    """Replaces the results of one row."""

    def __init__(self, answer):
        super().__init__(num_blocks=64, block_size=4)
        self._answer = answer

    def run(self, plan):
        result = super().run(plan)
        rows = dict(result.rows)
        for id in [id for id in rows if id.request == "bad"]:
            del rows[id]
            if self._answer is not None:
                rows[id] = self._answer
        return StepResult(rows=rows)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RowResult(error="nan in the logits"), "nan in the logits"),
        (RowResult(), "gave 0 tokens for 1 wanted"),
        (None, "gave no result"),
    ],
)
def test_a_row_without_a_right_result_fails_alone(answer, error):
    bench = Bench(executor=Answering(answer))
    good = make_request("good", [1, 2], max_tokens=5)
    bench.add(good)
    bench.add(make_request("bad", [3]))
    bench.run()
    assert bench.outcomes["bad"].finish is FinishReason.ERROR
    assert error in bench.outcomes["bad"].error
    assert bench.outcomes["good"].tokens == expected_output(good, 1000)
    bench.assert_empty()


class Exporting(LocalKV):
    """Holds the blocks of what ended until the executor says that they were saved."""

    def __init__(self):
        self.finished, self.done = [], []

    def on_finished(self, seq):
        self.finished.append(seq.id)
        return True

    def take_ops(self):
        return KVOps(stores_new=(0,))

    def on_done(self, done):
        self.done.append(done)


class Saving(TinyExecutor):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.to_save = ()
        self.ops = []

    def run(self, plan):
        result = super().run(plan)
        self.ops.append(plan.kv)
        return StepResult(rows=result.rows, kv=KVDone(saved=self.to_save))


def test_blocks_of_an_ended_sequence_are_held_until_the_planner_has_saved_them():
    kv, executor = Exporting(), Saving(num_blocks=8, block_size=4)
    bench = Bench(num_blocks=8, executor=executor, kv=kv)
    bench.add(make_request("a", range(6), max_tokens=1))
    bench.step()
    assert bench.engine.stats().num_used_blocks == 2
    executor.to_save = tuple(kv.finished)
    bench.step()
    assert kv.done[-1].saved == tuple(kv.finished)
    bench.assert_empty()


def test_kv_operations_go_to_the_executor_once_although_the_step_is_repeated():
    kv = LocalKV()
    planned = [KVOps(stores_new=(1,))]
    kv.take_ops = lambda: planned.pop() if planned else KVOps()

    class FailsOnPairs(Saving):
        def run(self, plan):
            if len(plan.rows) > 1:
                raise RuntimeError("one at a time")
            return super().run(plan)

    executor = FailsOnPairs(num_blocks=8, block_size=4)
    bench = Bench(num_blocks=8, executor=executor, kv=kv)
    for id in "abc":
        bench.add(make_request(id, [ord(id)], max_tokens=2))
    bench.run()
    assert [ops for ops in executor.ops if ops.stores_new] == [KVOps(stores_new=(1,))]
    assert all(outcome.finish is FinishReason.LENGTH for outcome in bench.outcomes.values())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RowResult(tokens=(1,)), "gave 0 tokens of other choices for 1 wanted"),
        (RowResult(tokens=(1,), siblings=(2,)), "gave 0 log-probabilities for 1 known"),
    ],
)
def test_an_answer_that_lacks_what_was_asked_fails_alone(answer, error):
    bench = Bench(executor=Answering(answer))
    bench.add(make_request("bad", [3, 4], num_choices=2, num_prompt_logprobs=0))
    bench.run()
    assert error in bench.outcomes["bad"].error
    bench.assert_empty()


def test_a_fault_of_the_callers_rules_is_told_by_its_code():
    bench = Bench(executor=Answering(RowResult(error=RuleFault("no token may follow", code="NO_TOKEN_ALLOWED"))))
    told = bench.add(make_request("bad", [3, 4])) or []
    while bench.engine.has_work:
        told += bench.engine.step()
    (last,) = [delta for delta in told if delta.finish]
    assert (last.error, last.refusal) == ("no token may follow", "NO_TOKEN_ALLOWED")
    bench.assert_empty()


def test_a_search_without_candidates_fails_alone():
    bench = Bench(executor=Answering(RowResult()))
    bench.add(make_beams("bad", [3]))
    bench.run()
    assert "gave 0 candidates" in bench.outcomes["bad"].error
    bench.assert_empty()
