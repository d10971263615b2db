"""What placement prefers, in small worlds whose right answer is plain."""

from __future__ import annotations

from placement_world import job, uid, worker

from octavo_scheduler.placement import HeldJob, place

HELD = HeldJob("x", False)


def targets(jobs, workers):
    return {a.job_id: a.worker_id for a in place(jobs, workers)}


def test_nothing_waits_and_nothing_serves():
    assert place([], []) == []
    assert place([job(1)], []) == []
    assert place([], [worker(1)]) == []


def test_jobs_spread_over_equal_workers():
    jobs = [job(n) for n in range(6)]
    counts = [list(targets(jobs, [worker(1), worker(2), worker(3)]).values()).count(uid(n, 2)) for n in (1, 2, 3)]
    assert counts == [2, 2, 2]


def test_the_emptier_worker_is_chosen():
    assert targets([job(1)], [worker(1, held=(HELD,) * 3), worker(2, held=(HELD,))]) == {uid(1, 1): uid(2, 2)}


def test_a_worker_whose_engine_queues_is_avoided():
    assert targets([job(1)], [worker(1, num_waiting=2), worker(2, held=(HELD,))]) == {uid(1, 1): uid(2, 2)}


def test_a_long_prefix_outweighs_some_load():
    keys = tuple("abcde")  # 64, 128, 256, 512, 1024 tokens
    warm = worker(1, held=(HELD,) * 4, prefix_keys=frozenset(keys))
    asked = job(1, prefix_keys=keys, num_prompt_tokens=1100)
    assert targets([asked], [worker(2), warm]) == {uid(1, 1): uid(1, 2)}


def test_a_prefix_does_not_outweigh_any_load():
    keys = ("a",)  # 64 tokens
    warm = worker(1, held=(HELD,) * 4, prefix_keys=frozenset(keys))
    assert targets([job(1, prefix_keys=keys, num_prompt_tokens=70)], [worker(2), warm]) == {uid(1, 1): uid(2, 2)}


def test_a_long_prompt_of_the_same_round_is_work_ahead():
    jobs = [job(1, num_prompt_tokens=1000), job(2), job(3), job(4)]
    chosen = targets(jobs, [worker(1), worker(2)])
    assert [chosen[uid(n, 1)] for n in (1, 2, 3, 4)] == [uid(n, 2) for n in (1, 2, 2, 2)]


def test_a_prompt_of_the_same_round_warms_its_worker():
    keys = tuple("abcde")
    first, others = job(1, prefix_keys=keys, num_prompt_tokens=1100), [job(n) for n in range(10, 20)]
    again = job(2, prefix_keys=keys, num_prompt_tokens=1100, priority=-1)
    chosen = targets([first, *others, again], [worker(1, max_jobs=99), worker(2, max_jobs=99)])
    assert chosen[again.id] == chosen[first.id]


def test_resumed_jobs_come_first_then_priority_then_age():
    jobs = [job(1), job(2, priority=5), job(3, resumed=True, priority=-5), job(4, priority=5)]
    order = [a.job_id for a in place(jobs, [worker(1, max_jobs=3)])]
    assert order == [uid(3, 1), uid(2, 1), uid(4, 1)]


def test_a_tenant_at_its_limit_does_not_hide_another():
    full = [
        job(n, tenant="full", fair_key="full", priority=9, tenant_max_running=1, tenant_num_running=1) for n in (1, 2)
    ]
    assert list(targets([*full, job(3)], [worker(1)])) == [uid(3, 1)]


def test_two_lossy_jobs_never_meet():
    jobs = [job(1, losses=1), job(2, losses=2), job(3, losses=1), job(4)]
    chosen = targets(jobs, [worker(1), worker(2, held=(HeldJob("x", True),)), worker(3)])
    assert {chosen[uid(1, 1)], chosen[uid(2, 1)]} == {uid(1, 2), uid(3, 2)}
    assert uid(3, 1) not in chosen
    assert uid(4, 1) in chosen


def test_a_job_with_tokens_goes_on_where_the_numerics_are_its_own():
    moved = job(1, resumed=True, num_emitted_tokens=5, numerics_id="n2")
    busy = worker(2, numerics_id="n2", held=(HELD,) * 7)
    assert targets([moved], [worker(1), busy]) == {uid(1, 1): uid(2, 2)}
    full = worker(2, numerics_id="n2", held=(HELD,) * 8)
    assert targets([moved], [worker(1), full]) == {uid(1, 1): uid(1, 2)}


def test_a_job_without_tokens_goes_anywhere():
    fresh = job(1, resumed=True, numerics_id="n2")
    assert targets([fresh], [worker(1), worker(2, numerics_id="n2", held=(HELD,))]) == {uid(1, 1): uid(1, 2)}
