"""A small world around one job, whose every step uses the rules of the store: for walking through all its histories.

Two workers, the gateway that owns the stream (others take over when it is lost), a scheduler, a reaper and a client.
Time is the freedom to take any step that the clock could allow: a lease may be over as soon as its holder does not
renew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from exploration_streams import adopt, gateway_steps
from exploration_world import (
    GONE,
    NUM_TOKENS,
    NUM_WORKERS,
    Gateway,
    Step,
    Worker,
    World,
    apply,
    facts,
    lives,
    with_gateway,
    with_worker,
    worker_id,
)

from octavo_common.jobs import transitions as rules
from octavo_common.jobs.model import JobState

# Place also at workers that somebody has found dead; only to see that it goes wrong.
trusts_the_dead = False


def steps(world: World) -> Iterator[Step]:
    """Every step that may be next. The end of both job and stream is the end of the story."""
    if world.core.state.ended and (world.outcome or not world.gateways):
        return
    yield from _scheduler(world)
    yield from _reaper(world)
    yield from _outside(world)
    for slot in range(NUM_WORKERS):
        yield from _worker(world, slot)
    for index, gateway in enumerate(world.gateways):
        if gateway.alive:
            yield from gateway_steps(world, index)
    if world.reading is None and world.gateways and not world.outcome:
        yield "client: adopt", adopt(world)


def _scheduler(world: World) -> Iterator[Step]:
    core = world.core
    for slot, worker in enumerate(world.workers):
        # The dead look alive until their heartbeat is stale or somebody has found them.
        if not worker.suspected or trusts_the_dead:
            target = worker_id(slot)
            change = rules.assign(core, fence=core.fence, worker=target, facts=facts(world))
            if change is not None:
                yield f"scheduler: assign to {slot}", apply(world, change)


def _reaper(world: World) -> Iterator[Step]:
    change = rules.reap(world.core, facts=facts(world))
    if change is not None:
        # Its heartbeat was as old as its lease.
        workers = tuple(
            replace(w, suspected=True) if world.core.worker_id == worker_id(i) and not lives(w) else w
            for i, w in enumerate(world.workers)
        )
        yield "reaper: reap", apply(world, change, workers=workers)
    change = rules.expire(world.core, facts=facts(world))
    if change is not None:
        yield "reaper: expire", apply(world, change)


def _outside(world: World) -> Iterator[Step]:
    """Users, clocks, and faults."""
    ended = world.core.state.ended
    if world.may_cancel and not ended:
        change = rules.cancel(world.core)
        if change is not None:
            yield "user: cancel", apply(world, change, may_cancel=False)
    if world.may_expire and not ended:
        yield "clock: deadline", replace(world, may_expire=False, deadline_passed=True)
    for slot, worker in enumerate(world.workers):
        if worker.alive and not worker.awake:
            # Its first heartbeat clears the suspicion.
            yield f"worker {slot}: wake", with_worker(world, slot, replace(worker, awake=True, suspected=False))
        if not worker.alive:
            yield f"worker {slot}: restart", _restart(world, slot)
    if not world.faults_left:
        return
    less = replace(world, faults_left=world.faults_left - 1)
    for slot, worker in enumerate(world.workers):
        if lives(worker):
            dead = Worker(alive=False)
            yield f"fault: worker {slot} dies", with_worker(less, slot, dead)
            yield f"fault: worker {slot} pauses", with_worker(less, slot, replace(worker, awake=False))
    if world.reading is not None:
        gateway = world.gateways[world.reading]
        gone = replace(less, reading=None, gateway_faults=world.gateway_faults + 1)
        for name, left in (("dies", Gateway(alive=False, sent=gateway.sent)), ("is cut off", gateway)):
            cut = with_gateway(gone, world.reading, left)
            yield f"fault: gateway {name}", cut
            if world.received:
                # The last token was on its way.
                yield f"fault: gateway {name}, a token is lost", replace(cut, received=world.received[:-1])


def _worker(world: World, slot: int) -> Iterator[Step]:
    worker = world.workers[slot]
    if not lives(worker):
        return
    core, me = world.core, worker_id(slot)
    change = rules.claim(core, worker=me) or rules.take(core, process=me, facts=facts(world))
    if change is not None:
        taken = replace(worker, fence=change.after.fence, log=core.emitted_ids, committed=False)
        claimed = apply(world, change)
        yield f"worker {slot}: claim", with_worker(claimed, slot, taken)
        if world.faults_left:
            yield f"fault: worker {slot} claims, answer lost", replace(claimed, faults_left=world.faults_left - 1)
    if core.state is JobState.RUNNING and core.worker_id == me and worker.fence != core.fence:
        taken = replace(worker, fence=core.fence, log=core.emitted_ids, committed=False)
        yield f"worker {slot}: claim what an earlier claim left", with_worker(world, slot, taken)
    if worker.fence is None or worker.committed:
        return
    yield from _worker_holds(world, slot, worker, worker.fence, me)


def _worker_holds(world: World, slot: int, worker: Worker, fence: int, me: UUID) -> Iterator[Step]:
    core = world.core
    beat = rules.renew(core, fence=fence, worker=me, num_tokens=len(worker.log))
    if beat is None:
        if core.state.ended or core.fence != fence or core.worker_id != me:
            yield f"worker {slot}: heartbeat, lost", with_worker(world, slot, _without_job(worker))
    elif world.reports and beat.after != core:
        yield f"worker {slot}: heartbeat", apply(world, beat)
    if len(worker.log) < NUM_TOKENS:
        token = 100 * (len(worker.log) + 1) + fence
        yield f"worker {slot}: token", with_worker(world, slot, replace(worker, log=(*worker.log, token)))
    if core.cancel_requested:
        yield from _finish(world, slot, worker, fence, JobState.CANCELLED)
    elif world.deadline_passed:
        yield from _finish(world, slot, worker, fence, JobState.FAILED)
    if len(worker.log) == NUM_TOKENS:
        yield from _finish(world, slot, worker, fence, JobState.SUCCEEDED)
    if world.drains_left:
        # What is pulled has no tokens: its steps are kept elsewhere, or made again.
        kept = () if core.pulled else worker.log
        change = rules.release(core, fence=fence, emitted_ids=kept, facts=facts(world))
        if change is not None:
            released = apply(world, change, drains_left=world.drains_left - 1)
            yield f"worker {slot}: release", with_worker(released, slot, _without_job(worker))
            if world.faults_left:
                # It stops before it writes, and stays stopped when it hears nothing: no token may follow.
                failed = replace(world, drains_left=world.drains_left - 1, faults_left=world.faults_left - 1)
                yield f"fault: worker {slot} cannot release", with_worker(failed, slot, _without_job(worker))


def _finish(world: World, slot: int, worker: Worker, fence: int, state: JobState) -> Iterator[Step]:
    change = rules.finish(world.core, fence=fence, state=state, num_tokens=len(worker.log))
    name = f"worker {slot}: finish {state.value}"
    if change is None:
        mine = rules.finished_before(world.core, fence=fence, state=state)
        assert not mine or state is not JobState.SUCCEEDED or world.result == worker.log, "an end is its writer's own"
        yield (
            name + " again",
            with_worker(world, slot, replace(worker, committed=True) if mine else _without_job(worker)),
        )
        return
    assert world.result is None, "a job ends once"
    ended = apply(world, change, result=worker.log if state is JobState.SUCCEEDED else None)
    yield name, with_worker(ended, slot, replace(worker, committed=True))
    if world.faults_left:
        yield f"fault: {name}, answer lost", replace(ended, faults_left=world.faults_left - 1)


def _restart(world: World, slot: int) -> World:
    """Another process takes the dead one's place; who knew the old one finds nobody."""
    core = world.core
    if core.worker_id == worker_id(slot):
        core = replace(core, worker_id=worker_id(GONE))
    gateways = tuple(
        replace(g, attached=(GONE, g.attached[1])) if g.attached is not None and g.attached[0] == slot else g
        for g in world.gateways
    )
    return with_worker(replace(world, core=core, gateways=gateways), slot, Worker())


def _without_job(worker: Worker) -> Worker:
    return replace(worker, fence=None, log=(), committed=False)
