"""The values of the explored world around one job, and what the table does to it.

Tokens differ between attempts, as they may on different hardware: a token names its place and the fence under which
it was made, so that a splice shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from octavo_common.jobs.model import HELD, JobState
from octavo_common.jobs.transitions import Change, Core, Facts

NUM_TOKENS = 2
NUM_WORKERS = 2
GONE = -1


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


def start(*, streaming: bool = True, pulled: bool = False, **options: int) -> World:
    owner = gateway_id(0) if streaming else None
    world = World(core=Core(stream_owner=owner, pulled=pulled), **options)  # type: ignore[arg-type]
    return world if streaming else replace(world, gateways=(), reading=None)


def apply(world: World, change: Change, **also: object) -> World:
    """What the store does with a change, and what may never happen."""
    before, after = change.before, change.after
    assert before == world.core
    assert not before.state.ended, "a job ends once"
    moved = after.worker_id != before.worker_id or (before.state in HELD and after.state is JobState.QUEUED)
    assert after.fence > before.fence or not moved, "every change of owner bumps the fence"
    return replace(world, core=after, **also)  # type: ignore[arg-type]


def facts(world: World) -> Facts:
    return Facts(
        deadline_passed=world.deadline_passed, lease_over=_lease_may_be_over(world), owner_fresh=_owner_lives(world)
    )


def _owner_lives(world: World) -> bool:
    return any(g.alive and gateway_id(i) == world.core.stream_owner for i, g in enumerate(world.gateways))


def _lease_may_be_over(world: World) -> bool:
    """Who lives claims and renews in time."""
    return world.core.state in HELD and not any(
        world.core.worker_id == worker_id(slot) and lives(worker) for slot, worker in enumerate(world.workers)
    )


def lives(worker: Worker) -> bool:
    return worker.alive and worker.awake


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


def with_worker(world: World, slot: int, worker: Worker) -> World:
    workers = list(world.workers)
    workers[slot] = worker
    return replace(world, workers=tuple(workers))


def with_gateway(world: World, index: int, gateway: Gateway) -> World:
    gateways = list(world.gateways)
    gateways[index] = gateway
    return replace(world, gateways=tuple(gateways))
