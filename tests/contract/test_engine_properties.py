"""What every scheduler must hold: checked over random arrivals, aborts, forks, tiny pools and failing steps."""

import pytest
from fakes.engines import Bench, make_request
from fakes.random_work import Driver
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_worker.engine.queueing import QUEUES, DeadlineQueue, FairQueue, PriorityQueue
from octavo_worker.engine.types import FinishReason


def queue_of(name):
    """Queues that age within a test."""
    if name == "fcfs":
        return None
    return FairQueue(
        lambda: PriorityQueue(steps_per_level=8) if name == "priority" else DeadlineQueue(patience_steps=24)
    )


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.sampled_from([2, 5, 8, 13, 40]),
    max_sequences=st.sampled_from([1, 2, 5, 9]),
    extra_batch=st.sampled_from([0, 1, 7, 50]),
    beside=st.sampled_from([1, 3, 8, 64]),
    chunk=st.sampled_from([None, 1, 3, 4, 16]),
    queue=st.sampled_from(sorted(QUEUES)),
    style=st.sampled_from(["v1", "v1", "v0"]),
    num_host_slots=st.sampled_from([0, 3, 50]),
    # Parts that want several choices, and that search with beams.
    rates=st.sampled_from([(0.0, 0.0), (0.4, 0.0), (0.0, 0.4), (0.2, 0.2)]),
    abort_rate=st.sampled_from([0.0, 0.2]),
    num_drafts=st.sampled_from([0, 0, 3]),
)
def test_random_work_gives_brute_force_tokens_and_leaks_nothing(
    seed, num_blocks, queue, style, num_host_slots, rates, abort_rate, num_drafts, **limits
):
    driver = Driver(
        seed=seed,
        num_blocks=num_blocks,
        num_drafts=num_drafts,
        queue=queue_of(queue),
        style=style,
        num_host_slots=num_host_slots,
        choices_rate=rates[0],
        beams_rate=rates[1],
        limits={
            "max_sequences": limits["max_sequences"],
            "max_batch_tokens": limits["max_sequences"] + limits["extra_batch"],
            "max_prompt_tokens_beside_decode": limits["beside"],
            "max_chunk_tokens": limits["chunk"],
        },
    )
    driver.drive(num_steps=100, arrival_rate=0.4, abort_rate=abort_rate)


def drive(style, seed, num_blocks, num_steps, *, num_host_slots, queue="fcfs"):
    limits = {"max_sequences": 6, "max_batch_tokens": 24, "max_prompt_tokens_beside_decode": 6}
    driver = Driver(
        seed=seed,
        num_blocks=num_blocks,
        limits=limits,
        style=style,
        num_host_slots=num_host_slots,
        queue=queue_of(queue),
        choices_rate=0.15,
        beams_rate=0.15,
    )
    driver.drive(num_steps=num_steps, arrival_rate=0.5, abort_rate=0.05)
    outcomes = driver.bench.choices.values()
    # The run was worth its name: all that can happen did.
    assert sum(outcome.num_preemptions for outcome in outcomes) > num_steps // 200
    assert sum(outcome.num_cached for outcome in outcomes) > num_steps // 30
    assert {outcome.finish for outcome in outcomes} == set(FinishReason)
    assert driver.num_copies > num_steps // 200
    if num_host_slots:
        assert driver.num_stores > num_steps // 100 and driver.num_loads > num_steps // 200


KINDS = [
    pytest.param(style, seed, num_blocks, num_host_slots, queue, id=f"{style}-{num_blocks}-{num_host_slots}-{queue}")
    for seed, (style, num_blocks, num_host_slots, queue) in enumerate(
        [
            ("v1", 9, 0, "fcfs"),
            ("v1", 16, 12, "fcfs"),
            ("v1", 16, 40, "priority"),
            ("v0", 9, 0, "fcfs"),
            ("v0", 16, 12, "fcfs"),
            ("v0", 16, 40, "deadline"),
        ]
    )
]


@pytest.mark.parametrize(("style", "seed", "num_blocks", "num_host_slots", "queue"), KINDS)
def test_hundreds_of_steps_under_load_leave_the_books_balanced(style, seed, num_blocks, num_host_slots, queue):
    drive(style, seed, num_blocks, 600, num_host_slots=num_host_slots, queue=queue)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("style", "seed", "num_blocks", "num_host_slots", "queue"), KINDS)
def test_ten_thousand_steps_under_load_leave_the_books_balanced(style, seed, num_blocks, num_host_slots, queue):
    drive(style, 100 + seed, num_blocks, 10_000, num_host_slots=num_host_slots, queue=queue)


def test_with_priorities_nobody_starves_under_a_flood_of_more_urgent_work():
    steps_per_level, levels = 8, 2
    bench = Bench(num_blocks=8, max_sequences=2, queue=PriorityQueue(steps_per_level=steps_per_level))
    bench.add(make_request("low", range(9), priority=0, max_tokens=4))
    for step in range(400):
        if bench.outcomes["low"].finish:
            break
        bench.add(make_request(f"u{step}", [step % 97, 1, 2], priority=levels, max_tokens=3))
        bench.step()
    # Overtaken only by what came within the levels' steps: 16 requests of at most 4 steps each, two at a time.
    assert step <= steps_per_level * levels * 4
