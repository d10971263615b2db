"""Who is late changes nothing; lost answers are found again; and the statements do what the pure rules say."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from sqlalchemy import insert, text
from store_world import World, card, new_job, result

from octavo_common import ids
from octavo_common.db.tables import jobs
from octavo_common.jobs import transitions as rules
from octavo_common.jobs.model import EDGE_BUILD, GENERATION, Assignment, Held, Job, JobState, Resumption
from octavo_common.jobs.spec import JobFailure
from octavo_common.jobs.transitions import Change, Core, Facts
from octavo_common.store.changes import CORE_COLUMNS, to_core

FAILURE = JobFailure(code="BROKEN", message="it broke")


async def test_a_stale_worker_that_wakes_up_late_changes_nothing(world: World) -> None:
    stale, fresh = await world.worker(), await world.worker()
    old = await world.running(stale)
    await world.age(old.id, 60)
    assert [reaped.id for reaped in await world.placement.reap()] == [old.id]
    await world.age(old.id, 60)
    job = await world.assign(old, fresh)
    await world.work.claim(fresh, 10)
    before = await world.get(job)
    assert before.fence == old.fence + 2

    assert not await world.work.finish(old.id, old.fence, result=result(9))
    assert not await world.work.finish(old.id, old.fence, failure=FAILURE)
    assert not await world.work.finish(old.id, old.fence, cancelled=True)
    assert not await world.work.release(old.id, old.fence, (9,))
    answer = await world.processes.heartbeat(stale, held=[Held(old.id, old.fence, 7)])
    assert answer.lost == {old.id}
    # Even with the right fence it is not the stale one's job.
    assert (await world.processes.heartbeat(stale, held=[Held(old.id, job.fence, 7)])).lost == {old.id}
    assert await world.work.claim(stale, 10, held=()) == []
    assert await world.get(job) == before
    assert await world.work.finish(job.id, job.fence, result=result(1))


async def test_a_finish_whose_answer_was_lost_may_be_repeated(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    assert await world.work.finish(job.id, job.fence, result=result(1))
    assert await world.work.finish(job.id, job.fence, result=result(1))
    assert not await world.work.finish(job.id, job.fence, failure=FAILURE)
    assert (await world.event_names(job)).count("succeeded") == 1


async def test_a_claim_whose_answer_was_lost_is_found_by_what_the_worker_does_not_hold(world: World) -> None:
    worker = await world.worker()
    job = await world.running(worker)
    assert await world.work.claim(worker, 10) == []
    assert await world.work.claim(worker, 10, held=[job.id]) == []
    (again,) = await world.work.claim(worker, 10, held=[])
    assert (again.job.id, again.job.fence, again.job.state) == (job.id, job.fence, JobState.RUNNING)
    assert (await world.event_names(job)).count("running") == 1


async def test_a_submit_whose_answer_was_lost_may_be_repeated(world: World) -> None:
    job = new_job()
    first, created = await world.jobs.submit(job, max_queued=1)
    assert created
    again, created = await world.jobs.submit(job, max_queued=1)
    assert (again, created) == (first, True)
    again, created = await world.jobs.submit(job, max_queued=None)
    assert (again, created) == (first, True)


async def test_a_job_goes_on_behind_its_emitted_tokens_and_says_when_numerics_changed(world: World) -> None:
    gateway = await world.gateway()
    first = await world.worker()
    job = await world.running(first, stream_owner=gateway)
    resumed = await world.streams.resume(job.id, Resumption(owner=gateway, fence=job.fence, emitted_ids=(5, 6)))
    assert resumed is not None
    assert (resumed.state, resumed.emitted_ids, resumed.worker_id) == (JobState.QUEUED, (5, 6), None)
    (queued,) = await world.placement.queue(10) or [None]
    assert queued is None or queued.numerics_id == "float32/test"
    second = await world.worker(card=card(numerics_id="float32/other"))
    await world.assign(resumed, second)
    (claimed,) = await world.work.claim(second, 10)
    assert (claimed.job.emitted_ids, claimed.job.numerics_changed) == ((5, 6), True)
    assert claimed.job.numerics_id == "float32/other"


async def test_who_claims_a_job_that_moved_learns_what_earlier_attempts_knew(world: World) -> None:
    first, second, gateway = await world.worker(), await world.worker(), await world.gateway()
    job = await world.submit(stream_owner=gateway)
    await world.sql("update jobs set created_at = created_at - interval '30 s' where id = :id", id=job.id)
    await world.assign(job, first)
    (claimed,) = await world.work.claim(first, 1)
    assert (claimed.earlier_start_s, claimed.earlier_token_s) == (None, None)
    assert claimed.age_s == claimed.wait_s >= 30
    # It began when it was ten seconds old, and its first token came six seconds before now, a loss.
    await world.sql("update jobs set started_at = created_at + interval '10 s' where id = :id", id=job.id)
    resumed = await world.streams.resume(
        job.id,
        Resumption(owner=gateway, fence=claimed.job.fence, emitted_ids=(5,), why="worker_gone", first_token_ago_s=6.0),
    )
    assert resumed is not None
    event = (await world.jobs.events(job.id, tenant=None))[-1]
    assert (event.event, event.process_id) == ("resumed", gateway)
    assert (event.details["why"], event.details["worker"]) == ("worker_gone", str(first))
    first_token_s = float(event.details["first_token_s"])
    assert first_token_s == pytest.approx((event.time - resumed.created_at).total_seconds() - 6.0, abs=1.0)
    for _ in range(2):
        await world.assign(job, second)
        (again,) = await world.work.claim(second, 1)
        assert (again.earlier_start_s, again.earlier_token_s) == (pytest.approx(10.0), pytest.approx(first_token_s))
        assert again.wait_s < 30 <= again.age_s
        # A later loss knows nothing better.
        await world.streams.resume(
            job.id,
            Resumption(
                owner=gateway, fence=again.job.fence, emitted_ids=(5, 6), worker_dead=False, first_token_ago_s=1.0
            ),
        )


async def test_without_a_token_that_somebody_has_no_first_token_is_told(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    job = await world.running(worker, stream_owner=gateway)
    await world.streams.resume(
        job.id, Resumption(owner=gateway, fence=job.fence, emitted_ids=(), worker_dead=False, first_token_ago_s=1.0)
    )
    assert "first_token_s" not in (await world.jobs.events(job.id, tenant=None))[-1].details
    await world.assign(job, worker)
    (claimed,) = await world.work.claim(worker, 1)
    assert claimed.earlier_token_s is None and claimed.earlier_start_s is not None


async def test_only_the_owner_of_a_stream_resumes_it_and_only_once_for_a_fence(world: World) -> None:
    worker, gateway, other = await world.worker(), await world.gateway(), await world.gateway()
    job = await world.running(worker, stream_owner=gateway)
    assert await world.streams.resume(job.id, Resumption(owner=other, fence=job.fence, emitted_ids=())) is None
    assert await world.streams.resume(job.id, Resumption(owner=gateway, fence=job.fence - 1, emitted_ids=())) is None
    assert await world.streams.resume(job.id, Resumption(owner=gateway, fence=job.fence, emitted_ids=(1,))) is not None
    assert await world.streams.resume(job.id, Resumption(owner=gateway, fence=job.fence, emitted_ids=(2,))) is None
    assert (await world.get(job)).emitted_ids == (1,)


async def test_a_gateway_that_adopts_a_stream_owns_it_and_the_old_one_does_not(world: World) -> None:
    worker, old, new = await world.worker(), await world.gateway(), await world.gateway()
    job = await world.running(worker, stream_owner=old)
    adopted = await world.streams.adopt(job.id, owner=new, tenant="acme", emitted_ids=[])
    assert (adopted.stream_owner, adopted.state, adopted.fence) == (new, JobState.RUNNING, job.fence)
    assert await world.streams.owned(old) == []
    (owned,) = await world.streams.owned(new)
    assert (owned.id, owned.worker_address, owned.worker_alive) == (job.id, "127.0.0.1:1", True)
    await world.streams.detach(job.id, owner=old)
    assert (await world.get(job)).stream_owner == new
    await world.streams.detach(job.id, owner=new)
    assert (await world.get(job)).stream_owner is None
    await world.work.finish(job.id, job.fence, result=result(1))
    ended = await world.streams.adopt(job.id, owner=new, tenant="acme", emitted_ids=[1])
    assert ended.state is JobState.SUCCEEDED
    (row,) = await world.streams.rows([job.id, ids.new_job_id()])
    assert row.result == result(1).to_json()


async def test_a_worker_that_was_found_dead_gets_nothing_until_its_next_heartbeat(world: World) -> None:
    worker, gateway = await world.worker(), await world.gateway()
    job = await world.running(worker, stream_owner=gateway)
    resumed = await world.streams.resume(job.id, Resumption(owner=gateway, fence=job.fence, emitted_ids=()))
    assert resumed is not None
    assert await world.placement.fleet() == []
    assignment = Assignment(job_id=job.id, fence=resumed.fence, worker_id=worker)
    assert await world.placement.assign([assignment]) == []
    assert (await world.processes.heartbeat(worker)).known
    assert [w.id for w in await world.placement.fleet()] == [worker]
    assert await world.placement.assign([assignment]) == [job.id]


# --- statements against rules

WORKERS = [UUID(int=101), UUID(int=102)]
GATEWAYS = [UUID(int=201), UUID(int=202)]
# Ended ones are less interesting.
STATES = [*JobState, JobState.QUEUED, JobState.QUEUED, JobState.ASSIGNED, JobState.RUNNING]


def random_core(rng: random.Random) -> Core:
    state = rng.choice(STATES)
    held = state in (JobState.ASSIGNED, JobState.RUNNING)
    return Core(
        state=state,
        fence=rng.randrange(3),
        worker_id=rng.choice(WORKERS) if held or (state.ended and rng.random() < 0.5) else None,
        stream_owner=rng.choice([None, *GATEWAYS]),
        losses=rng.randrange(3),
        total_losses=rng.randrange(3),
        num_tokens=rng.randrange(3),
        loss_tokens=rng.randrange(3),
        emitted_ids=tuple(rng.randrange(3) for _ in range(rng.randrange(3))),
        cancel_requested=state is JobState.RUNNING and rng.random() < 0.3,
        pulled=rng.random() < 0.3,
    )


async def put(world: World, core: Core, facts: Facts) -> UUID:
    """Write a row of which the rules would see exactly this."""
    job_id = ids.new_job_id()
    values = {name: getattr(core, name) for name in Core.__dataclass_fields__}
    values |= {"state": core.state.value, "emitted_ids": list(core.emitted_ids)}
    values["kind"] = EDGE_BUILD if values.pop("pulled") else GENERATION
    now = text("now()")
    values |= {
        "ended_at": now if core.state.ended else None,
        "not_before": None if facts.ready else text("now() + interval '1 hour'"),
        "deadline": text("now() - interval '1 hour'") if facts.deadline_passed else None,
        "lease_until": text(f"now() {'-' if facts.lease_over else '+'} interval '1 hour'"),
    }
    base = {"id": job_id, "tenant": "acme", "fair_key": "", "model": "tiny", "model_digest": "", "payload": {}}
    async with world.database.begin() as connection:
        await connection.execute(insert(jobs).values({**base, **values}))
    return job_id


async def look(world: World, job_id: UUID) -> Core:
    rows = await world.sql(f"select {CORE_COLUMNS} from jobs j where id = :id", id=job_id)
    return to_core(rows[0]._mapping)[0]


Operation = tuple[Callable[[World, UUID], Awaitable[object]], Callable[[Core, Facts], Change | None]]


def operations(fence: int, sent: tuple[int, ...]) -> dict[str, Operation]:
    worker, gateway = WORKERS[0], GATEWAYS[0]
    end = JobState.SUCCEEDED
    return {
        "assign": (
            lambda w, i: w.placement.assign([Assignment(job_id=i, fence=fence, worker_id=worker)]),
            lambda c, f: rules.assign(c, fence=fence, worker=worker, facts=f),
        ),
        "take": (
            lambda w, _: w.builds.take(worker, lease_s=3600),
            lambda c, f: rules.take(c, process=worker, facts=f),
        ),
        "claim": (lambda w, _: w.work.claim(worker, 1000), lambda c, _: rules.claim(c, worker=worker)),
        "renew": (
            lambda w, i: w.processes.heartbeat(worker, held=[Held(i, fence, 2)]),
            lambda c, _: rules.renew(c, fence=fence, worker=worker, num_tokens=2),
        ),
        "finish": (
            lambda w, i: w.work.finish(i, fence, result=result(*sent)),
            lambda c, _: rules.finish(c, fence=fence, state=end, num_tokens=len(sent)),
        ),
        "release": (
            lambda w, i: w.work.release(i, fence, sent),
            lambda c, f: rules.release(c, fence=fence, emitted_ids=sent, facts=f),
        ),
        "resume": (
            lambda w, i: w.streams.resume(
                i, Resumption(owner=gateway, fence=fence, emitted_ids=sent, worker_dead=False)
            ),
            lambda c, f: rules.resume(c, fence=fence, owner=gateway, emitted_ids=sent, facts=f),
        ),
        "reap": (lambda w, _: w.placement.reap(), lambda c, f: rules.reap(c, facts=f)),
        "expire": (lambda w, _: w.placement.expire_deadlines(), lambda c, f: rules.expire(c, facts=f)),
        "cancel": (lambda w, i: w.jobs.cancel(i, tenant=None), lambda c, _: rules.cancel(c)),
        "adopt": (
            lambda w, i: w.streams.adopt(i, owner=GATEWAYS[1], tenant=None, emitted_ids=sent),
            lambda c, _: rules.adopt(c, owner=GATEWAYS[1], emitted_ids=sent),
        ),
        "detach": (lambda w, i: w.streams.detach(i, owner=gateway), lambda c, _: rules.detach(c, owner=gateway)),
    }


@pytest.mark.parametrize("name", list(operations(0, ())))
async def test_the_statements_do_what_the_rules_say(world: World, name: str) -> None:
    rng = random.Random(name)
    for worker in WORKERS:
        await world.sql("insert into processes (id, role, lease_s, card) values (:id, 'worker', 3600, '{}')", id=worker)
    # One owner is alive, the other's heartbeat is old.
    await world.sql("insert into processes (id, role, lease_s) values (:id, 'gateway', 3600)", id=GATEWAYS[0])
    num_changed = 0
    for _ in range(80):
        core = random_core(rng)
        facts = Facts(
            ready=rng.random() < 0.8,
            deadline_passed=rng.random() < 0.3,
            lease_over=rng.random() < 0.7,
            owner_fresh=core.stream_owner == GATEWAYS[0],
        )
        sent = tuple(rng.randrange(3) for _ in range(rng.randrange(3)))
        act, rule = operations(rng.choice([core.fence, core.fence, 1]), sent)[name]
        job_id = await put(world, core, facts)
        assert await look(world, job_id) == core
        await act(world, job_id)
        change = rule(core, facts)
        assert await look(world, job_id) == (core if change is None else change.after), (core, facts)
        num_changed += change is not None and change.after != core
        events = await world.sql("select event from job_events where job_id = :id", id=job_id)
        assert [e.event for e in events] == ([change.event] if change is not None and change.event else [])
        await world.sql("delete from jobs where id = :id", id=job_id)
    assert num_changed >= 3


def test_every_field_of_a_job_is_a_column() -> None:
    assert set(Job.__dataclass_fields__) | {"loss_tokens"} == set(jobs.c.keys())
