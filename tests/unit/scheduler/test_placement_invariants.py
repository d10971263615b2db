"""Placement against invariants that hold whatever it chooses, on worlds that hypothesis makes up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st
from placement_world import job, worker

from octavo_common.jobs.model import Assignment, QueuedJob
from octavo_scheduler.placement import HeldJob, WorkerView, place

MODELS = ["m1", "m2"]
KEYS = ["a", "b", "c"]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[QueuedJob], list[WorkerView]]:
    tenants = {t: draw(st.none() | st.integers(0, 4)) for t in KEYS}
    workers = [
        worker(
            n,
            model_digest=draw(st.sampled_from(MODELS)),
            numerics_id=draw(st.sampled_from(["n1", "n2"])),
            max_jobs=draw(st.integers(1, 4)),
            held=tuple(
                draw(st.lists(st.builds(HeldJob, st.sampled_from(KEYS), st.booleans()), max_size=5)),
            ),
            num_waiting=draw(st.integers(0, 2)),
            prefix_keys=frozenset(draw(st.lists(st.sampled_from("pqrs"), max_size=3))),
        )
        for n in range(draw(st.integers(0, 4)))
    ]
    jobs = []
    for n in range(draw(st.integers(0, 14))):
        tenant = draw(st.sampled_from(KEYS))
        jobs.append(
            job(
                n,
                tenant=tenant,
                fair_key=draw(st.sampled_from(KEYS)),
                model_digest=draw(st.sampled_from(MODELS)),
                numerics_id=draw(st.sampled_from(["", "n1", "n2"])),
                priority=draw(st.integers(-1, 1)),
                resumed=draw(st.booleans()),
                losses=draw(st.integers(0, 2)),
                num_prompt_tokens=draw(st.integers(1, 2000)),
                num_emitted_tokens=draw(st.integers(0, 1)),
                prefix_keys=tuple(draw(st.sampled_from([(), ("p",), ("p", "q"), ("r", "s")]))),
                tenant_max_running=tenants[tenant],
                tenant_num_running=1,
            )
        )
    return jobs, workers


def chosen(
    assignments: Sequence[Assignment], jobs: Sequence[QueuedJob], workers: Sequence[WorkerView]
) -> list[tuple[QueuedJob, WorkerView]]:
    by_job, by_worker = {j.id: j for j in jobs}, {w.id: w for w in workers}
    return [(by_job[a.job_id], by_worker[a.worker_id]) for a in assignments]


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_nothing_is_ever_given_beyond_a_limit(world: tuple[list[QueuedJob], list[WorkerView]]) -> None:
    jobs, workers = world
    assignments = place(jobs, workers)
    pairs = chosen(assignments, jobs, workers)

    assert len({a.job_id for a in assignments}) == len(assignments)
    assert all(a.fence == j.fence for a, (j, _) in zip(assignments, pairs, strict=True))
    assert all(j.model_digest == w.model_digest for j, w in pairs)
    given_to = Counter(w.id for _, w in pairs)
    for w in workers:
        assert not given_to[w.id] or len(w.held) + given_to[w.id] <= w.max_jobs
        lossy = sum(h.lossy for h in w.held)
        new_lossy = sum(j.losses > 0 for j, v in pairs if v.id == w.id)
        assert not new_lossy or lossy + new_lossy == 1
    for tenant, count in Counter(j.tenant for j, _ in pairs).items():
        limit = next(j.tenant_max_running for j in jobs if j.tenant == tenant)
        assert limit is None or count + 1 <= limit


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_no_job_waits_while_a_worker_could_take_it(world: tuple[list[QueuedJob], list[WorkerView]]) -> None:
    jobs, workers = world
    pairs = chosen(place(jobs, workers), jobs, workers)
    placed = {j.id for j, _ in pairs}
    for waiting in jobs:
        if waiting.id in placed:
            continue
        assert tenant_is_full(waiting, pairs) or all(unable(waiting, w, pairs) for w in workers)


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_no_job_takes_the_place_of_one_of_a_higher_class(world: tuple[list[QueuedJob], list[WorkerView]]) -> None:
    jobs, workers = world
    pairs = chosen(place(jobs, workers), jobs, workers)
    placed = {j.id for j, _ in pairs}
    for waiting in jobs:
        if waiting.id in placed:
            continue
        # Without all that was given to lower classes it still has no place.
        higher = [(j, w) for j, w in pairs if rank(j) <= rank(waiting)]
        assert tenant_is_full(waiting, higher) or all(unable(waiting, w, higher) for w in workers)


@given(worlds())
@settings(max_examples=60, deadline=None)
def test_the_same_world_gives_the_same_placement(world: tuple[list[QueuedJob], list[WorkerView]]) -> None:
    jobs, workers = world
    assert place(jobs, workers) == place(list(jobs), list(workers))


@given(worlds())
@settings(max_examples=120, deadline=None)
def test_a_job_with_tokens_keeps_its_numerics_if_a_worker_of_it_has_room(
    world: tuple[list[QueuedJob], list[WorkerView]],
) -> None:
    jobs, workers = world
    pairs = chosen(place(jobs, workers), jobs, workers)
    for index, (mover, w) in enumerate(pairs):
        if mover.num_emitted_tokens and mover.numerics_id and w.numerics_id != mover.numerics_id:
            same = [v for v in workers if v.numerics_id == mover.numerics_id]
            assert all(unable(mover, v, pairs[:index]) for v in same)


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=40), st.integers(0, 40), st.data())
@example(list("aaaaaaaab"), 2, None)
@settings(max_examples=60, deadline=None)
def test_room_is_shared_between_fair_keys(queue: list[str], room: int, data: st.DataObject | None) -> None:
    """Max-min fairness: no key with a waiting job has two running jobs less than a key that was given one."""
    held = tuple(
        HeldJob(key, False) for key in (data.draw(st.lists(st.sampled_from("abcde"), max_size=6)) if data else [])
    )
    jobs = [job(n, fair_key=key) for n, key in enumerate(queue)]
    views = [worker(0, max_jobs=room + len(held), held=held)]
    pairs = chosen(place(jobs, views), jobs, views)
    assert len(pairs) == min(room, len(queue))
    given = Counter(j.fair_key for j, _ in pairs)
    running = given + Counter(h.fair_key for h in held)
    waiting = set((Counter(queue) - given).elements())
    assert all(running[key] - running[poor] <= 1 for key in given for poor in waiting)


def rank(j: QueuedJob) -> tuple[bool, int]:
    return (not j.resumed, -j.priority)


def tenant_is_full(j: QueuedJob, pairs: Sequence[tuple[QueuedJob, WorkerView]]) -> bool:
    if j.tenant_max_running is None:
        return False
    return j.tenant_num_running + sum(other.tenant == j.tenant for other, _ in pairs) >= j.tenant_max_running


def unable(j: QueuedJob, w: WorkerView, pairs: Sequence[tuple[QueuedJob, WorkerView]]) -> bool:
    here = [other for other, v in pairs if v.id == w.id]
    has_lossy = any(h.lossy for h in w.held) or any(other.losses > 0 for other in here)
    return w.model_digest != j.model_digest or len(w.held) + len(here) >= w.max_jobs or (j.losses > 0 and has_lossy)
