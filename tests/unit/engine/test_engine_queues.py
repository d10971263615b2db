"""Whose turn it is: arrival, priority, deadline, age, and fairness between keys."""

import pytest
from fakes.engines import Bench, make_request

from octavo_worker.engine.queueing import QUEUES, DeadlineQueue, FairQueue, FcfsQueue, PriorityQueue


def run_in_turn(bench, requests):
    """Ids in the order in which they were begun."""
    for request in requests:
        bench.add(request)
    order = []
    while bench.engine.has_work:
        order += [delta.id.request for delta in bench.step() if "scheduled" in delta.events]
    bench.assert_empty()
    return order


def of_keys(keys, *, prompt=8, **params):
    return [make_request(f"{key}{n}", [n % 97] * prompt, fair_key=key, **params) for n, key in enumerate(keys)]


def test_fcfs_is_strict_whatever_else_a_request_says():
    bench = Bench(max_sequences=1, queue=FcfsQueue())
    requests = of_keys("aaabb", priority=3)
    requests += [make_request("urgent", [1], priority=9, due=0.0, fair_key="c")]
    assert run_in_turn(bench, requests) == [request.id for request in requests]


def test_keys_take_turns_although_one_was_there_first_with_all_it_has():
    bench = Bench(max_sequences=1, queue=FairQueue(FcfsQueue))
    order = run_in_turn(bench, of_keys("a" * 6 + "b" * 4))
    assert "".join(id[0] for id in order) == "ababababaa"


def test_turns_are_measured_in_tokens_and_not_in_requests():
    bench = Bench(max_sequences=1, queue=FairQueue(FcfsQueue), max_batch_tokens=64)
    heavy = of_keys("a" * 6, prompt=20, max_tokens=10)
    light = of_keys("b" * 12, prompt=5, max_tokens=2)
    order = "".join(id[0] for id in run_in_turn(bench, heavy + light))
    # 20 + 2 * 10 for a heavy one, 5 + 2 * 2 for a light one.
    assert order.startswith("abbbbba")
    first = order[: order.rindex("b") + 1]
    assert abs(first.count("a") * 40 - first.count("b") * 9) <= 40


def test_who_was_away_has_saved_nothing_up():
    bench = Bench(max_sequences=1, queue=FairQueue(FcfsQueue))
    for request in of_keys("a" * 9, max_tokens=9):
        bench.add(request)
    order = []
    for step in range(400):
        if step == 40:
            for request in of_keys("b" * 6, max_tokens=9):
                bench.add(request)
        order += [delta.id.request[0] for delta in bench.step() if "scheduled" in delta.events]
    after = "".join(order)[order.index("b") :]
    assert after.startswith("baba") or after.startswith("abab")
    assert not bench.engine.has_work


def test_who_used_an_idle_engine_is_not_made_to_wait_for_it():
    bench = Bench(max_sequences=1, queue=FairQueue(FcfsQueue))
    assert run_in_turn(bench, of_keys("a" * 20))
    order = run_in_turn(bench, of_keys("bbbb") + of_keys("aaaa"))
    assert "".join(id[0] for id in order) in ("babababa", "bbababaa")


def test_priority_decides_within_a_key_and_not_between_keys():
    bench = Bench(max_sequences=1, queue=FairQueue(PriorityQueue))
    requests = [
        make_request("a-low", [1] * 4, fair_key="a", priority=0),
        make_request("a-high", [2] * 4, fair_key="a", priority=5),
        make_request("a-top", [3] * 4, fair_key="a", priority=9),
        make_request("b-low", [4] * 4, fair_key="b", priority=0),
        make_request("b-high", [5] * 4, fair_key="b", priority=1),
    ]
    assert run_in_turn(bench, requests) == ["a-top", "b-high", "a-high", "b-low", "a-low"]


@pytest.mark.parametrize("name", sorted(QUEUES))
def test_with_one_key_fairness_changes_nothing(name):
    policy = {"fcfs": FcfsQueue, "priority": PriorityQueue, "deadline": DeadlineQueue}[name]
    requests = [make_request(str(n), [n] * 5, priority=n % 4, due=float(n * 7 % 11)) for n in range(12)]
    alone = run_in_turn(Bench(max_sequences=2, queue=policy()), requests)
    assert run_in_turn(Bench(max_sequences=2, queue=FairQueue(policy)), requests) == alone


def test_who_is_due_first_comes_first_and_no_deadline_is_the_latest():
    bench = Bench(max_sequences=1, queue=DeadlineQueue())
    dues = {"none": None, "late": 9.5, "soon": -2.0, "middle": 3.0, "never": None}
    order = run_in_turn(bench, [make_request(id, [1], due=due) for id, due in dues.items()])
    assert order == ["soon", "middle", "late", "none", "never"]


@pytest.mark.parametrize("fair", [False, True])
def test_age_brings_everyone_forward_under_a_flood_of_earlier_deadlines(fair):
    queue = FairQueue(lambda: DeadlineQueue(patience_steps=10)) if fair else DeadlineQueue(patience_steps=10)
    bench = Bench(max_sequences=1, queue=queue)
    bench.add(make_request("never", [1], max_tokens=3))
    ended = {}
    for step in range(60):
        bench.add(make_request(f"urgent{step}", [2], due=1.0, max_tokens=2))
        for delta in bench.step():
            if delta.finish is not None:
                ended[delta.id.request] = step
    # Ten steps of patience, one that was running, and its own three.
    assert ended["never"] <= 10 + 2 + 3 + 1


def test_age_counts_for_who_runs_and_for_who_was_preempted_too():
    bench = Bench(num_blocks=8, queue=DeadlineQueue(patience_steps=6))
    bench.add(make_request("never", range(12), max_tokens=16))
    for n in range(30):
        bench.add(make_request(f"u{n}", range(20 + n, 32 + n), due=0.0, max_tokens=6))
        bench.step()
        if bench.outcomes["never"].finish:
            break
    bench.run()
    # All were older than six steps when they met: it lost its place at most while it was young.
    assert bench.outcomes["never"].num_preemptions <= 2
    bench.assert_empty()


def test_the_books_of_keys_that_left_are_closed():
    queue = FairQueue(FcfsQueue)
    bench = Bench(queue=queue, max_sequences=8)
    for n in range(3000):
        bench.add(make_request(str(n), [1], max_tokens=1, fair_key=f"key{n}"))
        bench.step()
    bench.run()
    assert len(queue._served) < 1100
    assert len(queue) == 0 and list(queue) == []


def test_an_aborted_request_leaves_its_key_in_order():
    bench = Bench(max_sequences=1, queue=FairQueue(FcfsQueue))
    for request in of_keys("aab"):
        bench.add(request)
    bench.abort("a0")
    bench.abort("a1")
    order = []
    while bench.engine.has_work:
        order += [delta.id.request for delta in bench.step() if "scheduled" in delta.events]
    assert order == ["b2"]
    bench.assert_empty()
