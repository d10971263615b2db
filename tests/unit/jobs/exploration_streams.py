"""The steps of gateways and their client in the explored world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from exploration_world import (
    GONE,
    NUM_WORKERS,
    Gateway,
    Step,
    World,
    apply,
    facts,
    gateway_id,
    lives,
    with_gateway,
    with_worker,
    worker_id,
)

from octavo_common.jobs import transitions as rules
from octavo_common.jobs.model import HELD, JobState


def gateway_steps(world: World, index: int) -> Iterator[Step]:
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
                    yield f"gateway {index}: attach to {slot}", with_gateway(world, index, attached)
            if core.worker_id == worker_id(GONE):
                # The row names a process that is gone: nobody answers at its address.
                yield (
                    f"gateway {index}: finds nobody",
                    with_gateway(world, index, replace(gateway, must_resume=core.fence)),
                )
        return
    yield from _stream(world, index, gateway, *gateway.attached)


def _stream(world: World, index: int, gateway: Gateway, slot: int, fence: int) -> Iterator[Step]:
    free = replace(gateway, attached=None)
    broken = replace(free, must_resume=fence)
    if slot == GONE:
        yield f"gateway {index}: nobody answers", with_gateway(world, index, broken)
        return
    worker = world.workers[slot]
    if not lives(worker):
        found = with_worker(world, slot, replace(worker, suspected=True))
        yield f"gateway {index}: stream broke", with_gateway(found, index, broken)
        return
    if worker.fence != fence:
        core = world.core
        waits = core.fence == fence and core.worker_id == worker_id(slot) and not core.state.ended
        if not waits:
            # ABORTED: read the row.
            yield f"gateway {index}: detach from {slot}", with_gateway(world, index, free)
        return
    num = len(gateway.sent)
    if worker.log[:num] != gateway.sent:
        yield f"gateway {index}: other prefix", with_gateway(world, index, broken)
    elif len(worker.log) > num:
        yield f"gateway {index}: relay", _send(world, index, gateway, worker.log[num : num + 1])
    elif worker.committed:
        yield f"gateway {index}: last message", _end_from_worker(world, index, free)


def _resume(world: World, index: int, gateway: Gateway, fence: int) -> Iterator[Step]:
    free = replace(gateway, must_resume=None)
    change = rules.resume(
        world.core, fence=fence, owner=gateway_id(index), emitted_ids=gateway.sent, facts=facts(world)
    )
    if change is None:
        yield f"gateway {index}: resume, somebody was first", with_gateway(world, index, free)
        return
    resumed = apply(world, change)
    yield f"gateway {index}: resume", with_gateway(resumed, index, free)
    if world.faults_left:
        yield f"fault: gateway {index} resumes, answer lost", replace(resumed, faults_left=world.faults_left - 1)


def adopt(world: World) -> World:
    """The client brings what it has received to another gateway."""
    index = len(world.gateways)
    change = rules.adopt(world.core, owner=gateway_id(index), emitted_ids=world.received)
    adopted = world if change is None else apply(world, change)
    return replace(adopted, gateways=(*adopted.gateways, Gateway(sent=world.received)), reading=index)


def _send(world: World, index: int, gateway: Gateway, tokens: tuple[int, ...]) -> World:
    sent = replace(gateway, sent=gateway.sent + tokens)
    told = replace(world, received=sent.sent) if world.reading == index else world
    return with_gateway(told, index, sent)


def _end_from_worker(world: World, index: int, gateway: Gateway) -> World:
    outcome = "ok" if world.core.state is JobState.SUCCEEDED else "failed"
    told = replace(world, outcome=outcome) if world.reading == index else world
    return with_gateway(told, index, gateway)


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
