"""A small world around one job, whose every step uses the rules of the store: for walking through all its histories.

Two workers, the gateway that owns the stream (others take over when it is lost), a scheduler, a reaper and a client.
Tokens differ between attempts, as they may on different hardware: a token names its place and the fence under which
it was made, so that a splice shows. Time is the freedom to take any step that the
clock could allow: a lease may be over as soon as its holder does not renew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from octavo_common.jobs import transitions as rules
from octavo_common.jobs.model import HELD, JobState
from octavo_common.jobs.transitions import Change, Core, Facts

NUM_TOKENS = 2
NUM_WORKERS = 2
GONE = -1

# Place also at workers that somebody has found dead; only to see that it goes wrong.
trusts_the_dead = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    alive: bool = True
    # Paused processes do nothing, and go on later as if nothing had been.
    awake: bool = True
    suspected: bool = False
    # What it believes to hold: fence and tokens; None: nothing.
    fence: int | None = None
    log: tuple[int, ...] = ()
    # It knows that its result is committed.
    committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    alive: bool = True
    sent: tuple[int, ...] = ()
    # (worker's slot, fence) of its attachment; slot GONE: a process that was restarted, and is another one now.
    attached: tuple[int, int] | None = None
    # What it must do before anything else, with the fence that it has read.
    must_resume: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    core: Core
    workers: tuple[Worker, ...] = (Worker(),) * NUM_WORKERS
    gateways: tuple[Gateway, ...] = (Gateway(),)
    # The gateway that the client reads from; None: it has lost it.
    reading: int | None = 0
    received: tuple[int, ...] = ()
    # ok, aborted or failed, once the client's stream has ended.
    outcome: str = ""
    result: tuple[int, ...] | None = None
    faults_left: int = 2
    may_cancel: bool = False
    may_expire: bool = False
    deadline_passed: bool = False
    # Releases of draining workers that may still happen.
    drains_left: int = 0
    # Workers report their progress.
    reports: bool = False
    gateway_faults: int = 0


Step = tuple[str, World]


def worker_id(slot: int) -> UUID:
    return UUID(int=1000 + slot)


def gateway_id(index: int) -> UUID:
    return UUID(int=1 + index)


def start(*, streaming: bool = True, **options: int) -> World:
    owner = gateway_id(0) if streaming else None
    world = World(core=Core(stream_owner=owner), **options)  # type: ignore[arg-type]
    return world if streaming else replace(world, gateways=(), reading=None)


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
            yield from _gateway(world, index)
    if world.reading is None and world.gateways and not world.outcome:
        yield "client: adopt", _adopt(world)


# --- the table


def _apply(world: World, change: Change, **also: object) -> World:
    """What the store does with a change, and what may never happen."""
    before, after = change.before, change.after
    assert before == world.core
    assert not before.state.ended, "a job ends once"
    moved = after.worker_id != before.worker_id or (before.state in HELD and after.state is JobState.QUEUED)
    assert after.fence > before.fence or not moved, "every change of owner bumps the fence"
    return replace(world, core=after, **also)  # type: ignore[arg-type]


def _facts(world: World) -> Facts:
    return Facts(
        deadline_passed=world.deadline_passed, lease_over=_lease_may_be_over(world), owner_fresh=_owner_lives(world)
    )


def _owner_lives(world: World) -> bool:
    return any(g.alive and gateway_id(i) == world.core.stream_owner for i, g in enumerate(world.gateways))


def _lease_may_be_over(world: World) -> bool:
    """Who lives claims and renews in time."""
    return world.core.state in HELD and not any(
        world.core.worker_id == worker_id(slot) and _lives(worker) for slot, worker in enumerate(world.workers)
    )


# --- who acts


def _scheduler(world: World) -> Iterator[Step]:
    core = world.core
    for slot, worker in enumerate(world.workers):
        # The dead look alive until their heartbeat is stale or somebody has found them.
        if not worker.suspected or trusts_the_dead:
            target = worker_id(slot)
            change = rules.assign(core, fence=core.fence, worker=target, facts=_facts(world))
            if change is not None:
                yield f"scheduler: assign to {slot}", _apply(world, change)


def _reaper(world: World) -> Iterator[Step]:
    change = rules.reap(world.core, facts=_facts(world))
    if change is not None:
        # Its heartbeat was as old as its lease.
        workers = tuple(
            replace(w, suspected=True) if world.core.worker_id == worker_id(i) and not _lives(w) else w
            for i, w in enumerate(world.workers)
        )
        yield "reaper: reap", _apply(world, change, workers=workers)
    change = rules.expire(world.core, facts=_facts(world))
    if change is not None:
        yield "reaper: expire", _apply(world, change)


def _lives(worker: Worker) -> bool:
    return worker.alive and worker.awake


def _outside(world: World) -> Iterator[Step]:
    """Users, clocks, and faults."""
    ended = world.core.state.ended
    if world.may_cancel and not ended:
        change = rules.cancel(world.core)
        if change is not None:
            yield "user: cancel", _apply(world, change, may_cancel=False)
    if world.may_expire and not ended:
        yield "clock: deadline", replace(world, may_expire=False, deadline_passed=True)
    for slot, worker in enumerate(world.workers):
        if worker.alive and not worker.awake:
            # Its first heartbeat clears the suspicion.
            yield f"worker {slot}: wake", _with_worker(world, slot, replace(worker, awake=True, suspected=False))
        if not worker.alive:
            yield f"worker {slot}: restart", _restart(world, slot)
    if not world.faults_left:
        return
    less = replace(world, faults_left=world.faults_left - 1)
    for slot, worker in enumerate(world.workers):
        if _lives(worker):
            dead = Worker(alive=False)
            yield f"fault: worker {slot} dies", _with_worker(less, slot, dead)
            yield f"fault: worker {slot} pauses", _with_worker(less, slot, replace(worker, awake=False))
    if world.reading is not None:
        gateway = world.gateways[world.reading]
        gone = replace(less, reading=None, gateway_faults=world.gateway_faults + 1)
        for name, left in (("dies", Gateway(alive=False, sent=gateway.sent)), ("is cut off", gateway)):
            cut = _with_gateway(gone, world.reading, left)
            yield f"fault: gateway {name}", cut
            if world.received:
                # The last token was on its way.
                yield f"fault: gateway {name}, a token is lost", replace(cut, received=world.received[:-1])


def _worker(world: World, slot: int) -> Iterator[Step]:
    worker = world.workers[slot]
    if not _lives(worker):
        return
    core, me = world.core, worker_id(slot)
    change = rules.claim(core, worker=me)
    if change is not None:
        taken = replace(worker, fence=core.fence, log=core.emitted_ids, committed=False)
        claimed = _apply(world, change)
        yield f"worker {slot}: claim", _with_worker(claimed, slot, taken)
        if world.faults_left:
            yield f"fault: worker {slot} claims, answer lost", replace(claimed, faults_left=world.faults_left - 1)
    if core.state is JobState.RUNNING and core.worker_id == me and worker.fence != core.fence:
        taken = replace(worker, fence=core.fence, log=core.emitted_ids, committed=False)
        yield f"worker {slot}: claim what an earlier claim left", _with_worker(world, slot, taken)
    if worker.fence is None or worker.committed:
        return
    yield from _worker_holds(world, slot, worker, worker.fence, me)


def _worker_holds(world: World, slot: int, worker: Worker, fence: int, me: UUID) -> Iterator[Step]:
    core = world.core
    beat = rules.renew(core, fence=fence, worker=me, num_tokens=len(worker.log))
    if beat is None:
        if core.state.ended or core.fence != fence or core.worker_id != me:
            yield f"worker {slot}: heartbeat, lost", _with_worker(world, slot, _without_job(worker))
    elif world.reports and beat.after != core:
        yield f"worker {slot}: heartbeat", _apply(world, beat)
    if len(worker.log) < NUM_TOKENS:
        token = 100 * (len(worker.log) + 1) + fence
        yield f"worker {slot}: token", _with_worker(world, slot, replace(worker, log=(*worker.log, token)))
    if core.cancel_requested:
        yield from _finish(world, slot, worker, fence, JobState.CANCELLED)
    elif world.deadline_passed:
        yield from _finish(world, slot, worker, fence, JobState.FAILED)
    if len(worker.log) == NUM_TOKENS:
        yield from _finish(world, slot, worker, fence, JobState.SUCCEEDED)
    if world.drains_left:
        change = rules.release(core, fence=fence, emitted_ids=worker.log, facts=_facts(world))
        if change is not None:
            released = _apply(world, change, drains_left=world.drains_left - 1)
            yield f"worker {slot}: release", _with_worker(released, slot, _without_job(worker))
            if world.faults_left:
                # It stops before it writes, and stays stopped when it hears nothing: no token may follow.
                failed = replace(world, drains_left=world.drains_left - 1, faults_left=world.faults_left - 1)
                yield f"fault: worker {slot} cannot release", _with_worker(failed, slot, _without_job(worker))


def _finish(world: World, slot: int, worker: Worker, fence: int, state: JobState) -> Iterator[Step]:
    change = rules.finish(world.core, fence=fence, state=state, num_tokens=len(worker.log))
    name = f"worker {slot}: finish {state.value}"
    if change is None:
        mine = rules.finished_before(world.core, fence=fence, state=state)
        assert not mine or state is not JobState.SUCCEEDED or world.result == worker.log, "an end is its writer's own"
        yield (
            name + " again",
            _with_worker(world, slot, replace(worker, committed=True) if mine else _without_job(worker)),
        )
        return
    assert world.result is None, "a job ends once"
    ended = _apply(world, change, result=worker.log if state is JobState.SUCCEEDED else None)
    yield name, _with_worker(ended, slot, replace(worker, committed=True))
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
    return _with_worker(replace(world, core=core, gateways=gateways), slot, Worker())


def canonical(world: World) -> World:
    """The same world with its workers in a fixed order: which of them is the first makes no difference."""
    first, second = world.workers
    if _key(world, 0) <= _key(world, 1):
        return world
    names = {worker_id(0): worker_id(1), worker_id(1): worker_id(0)}
    core = world.core
    if core.worker_id in names:
        core = replace(core, worker_id=names[core.worker_id])
    gateways = tuple(
        replace(g, attached=(1 - g.attached[0], g.attached[1])) if g.attached and g.attached[0] != GONE else g
        for g in world.gateways
    )
    return replace(world, core=core, workers=(second, first), gateways=gateways)


def _key(world: World, slot: int) -> tuple[object, ...]:
    w = world.workers[slot]
    attached = tuple(g.attached is not None and g.attached[0] == slot for g in world.gateways)
    holds = world.core.worker_id == worker_id(slot)
    return (holds, w.alive, w.awake, w.suspected, w.fence or 0, w.log, w.committed, attached)


def _without_job(worker: Worker) -> Worker:
    return replace(worker, fence=None, log=(), committed=False)


def _gateway(world: World, index: int) -> Iterator[Step]:
    gateway, core = world.gateways[index], world.core
    if world.outcome and world.reading == index:
        return
    owner = core.stream_owner == gateway_id(index)
    if gateway.must_resume is not None:
        yield from _resume(world, index, gateway, gateway.must_resume)
        return
    if gateway.attached is None:
        if core.state.ended:
            yield from _end_from_row(world, index, gateway)
        elif core.state in HELD and owner:
            for slot in range(NUM_WORKERS):
                if core.worker_id == worker_id(slot):
                    attached = replace(gateway, attached=(slot, core.fence))
                    yield f"gateway {index}: attach to {slot}", _with_gateway(world, index, attached)
            if core.worker_id == worker_id(GONE):
                # The row names a process that is gone: nobody answers at its address.
                yield (
                    f"gateway {index}: finds nobody",
                    _with_gateway(world, index, replace(gateway, must_resume=core.fence)),
                )
        return
    yield from _stream(world, index, gateway, *gateway.attached)


def _stream(world: World, index: int, gateway: Gateway, slot: int, fence: int) -> Iterator[Step]:
    free = replace(gateway, attached=None)
    broken = replace(free, must_resume=fence)
    if slot == GONE:
        yield f"gateway {index}: nobody answers", _with_gateway(world, index, broken)
        return
    worker = world.workers[slot]
    if not _lives(worker):
        found = _with_worker(world, slot, replace(worker, suspected=True))
        yield f"gateway {index}: stream broke", _with_gateway(found, index, broken)
        return
    if worker.fence != fence:
        core = world.core
        waits = core.fence == fence and core.worker_id == worker_id(slot) and not core.state.ended
        if not waits:
            # ABORTED: read the row.
            yield f"gateway {index}: detach from {slot}", _with_gateway(world, index, free)
        return
    num = len(gateway.sent)
    if worker.log[:num] != gateway.sent:
        yield f"gateway {index}: other prefix", _with_gateway(world, index, broken)
    elif len(worker.log) > num:
        yield f"gateway {index}: relay", _send(world, index, gateway, worker.log[num : num + 1])
    elif worker.committed:
        yield f"gateway {index}: last message", _end_from_worker(world, index, free)


def _resume(world: World, index: int, gateway: Gateway, fence: int) -> Iterator[Step]:
    free = replace(gateway, must_resume=None)
    change = rules.resume(
        world.core, fence=fence, owner=gateway_id(index), emitted_ids=gateway.sent, facts=_facts(world)
    )
    if change is None:
        yield f"gateway {index}: resume, somebody was first", _with_gateway(world, index, free)
        return
    resumed = _apply(world, change)
    yield f"gateway {index}: resume", _with_gateway(resumed, index, free)
    if world.faults_left:
        yield f"fault: gateway {index} resumes, answer lost", replace(resumed, faults_left=world.faults_left - 1)


def _adopt(world: World) -> World:
    """The client brings what it has received to another gateway."""
    index = len(world.gateways)
    change = rules.adopt(world.core, owner=gateway_id(index), emitted_ids=world.received)
    adopted = world if change is None else _apply(world, change)
    return replace(adopted, gateways=(*adopted.gateways, Gateway(sent=world.received)), reading=index)


def _send(world: World, index: int, gateway: Gateway, tokens: tuple[int, ...]) -> World:
    sent = replace(gateway, sent=gateway.sent + tokens)
    told = replace(world, received=sent.sent) if world.reading == index else world
    return _with_gateway(told, index, sent)


def _end_from_worker(world: World, index: int, gateway: Gateway) -> World:
    outcome = "ok" if world.core.state is JobState.SUCCEEDED else "failed"
    told = replace(world, outcome=outcome) if world.reading == index else world
    return _with_gateway(told, index, gateway)


def _end_from_row(world: World, index: int, gateway: Gateway) -> Iterator[Step]:
    if world.reading != index:
        return
    if world.core.state is not JobState.SUCCEEDED:
        yield f"gateway {index}: row has failed", replace(world, outcome="failed")
        return
    assert world.result is not None
    num = len(gateway.sent)
    if world.result[:num] != gateway.sent:
        yield f"gateway {index}: row has other tokens", replace(world, outcome="aborted")
    else:
        rest = _send(world, index, gateway, world.result[num:])
        yield f"gateway {index}: row has the rest", replace(rest, outcome="ok")


def _with_worker(world: World, slot: int, worker: Worker) -> World:
    workers = list(world.workers)
    workers[slot] = worker
    return replace(world, workers=tuple(workers))


def _with_gateway(world: World, index: int, gateway: Gateway) -> World:
    gateways = list(world.gateways)
    gateways[index] = gateway
    return replace(world, gateways=tuple(gateways))
