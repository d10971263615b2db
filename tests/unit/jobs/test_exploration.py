"""Walks through all histories of one job and checks what DESIGN promises about every one of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import exploration
import pytest
from exploration import steps
from exploration_world import NUM_TOKENS, World, canonical, start

from octavo_common.jobs import transitions
from octavo_common.jobs.model import JobState
from octavo_common.jobs.transitions import Change, Core, Facts

# Many times what the cases need.
MAX_STATES = 500_000


@dataclass
class Graph:
    """All worlds that can be reached, with the way to each and the steps between them."""

    came_from: dict[World, tuple[str, World | None]] = field(default_factory=dict)
    before: dict[World, list[World]] = field(default_factory=dict)
    dead_ends: list[World] = field(default_factory=list)

    def history(self, world: World) -> str:
        names: list[str] = []
        at: World | None = world
        while at is not None:
            name, at = self.came_from[at]
            names.append(name)
        return " | ".join(reversed(names))

    def can_reach(self, goals: list[World]) -> set[World]:
        found, queue = set(goals), deque(goals)
        while queue:
            for world in self.before.get(queue.popleft(), ()):
                if world not in found:
                    found.add(world)
                    queue.append(world)
        return found


def explore(first: World) -> Graph:
    graph = Graph(came_from={first: ("start", None)})
    queue = deque([first])
    while queue:
        world = queue.popleft()
        try:
            check_world(world, first)
            following = list(steps(world))
        except AssertionError as error:
            raise AssertionError(f"{error}: {graph.history(world)}") from error
        moved = False
        for name, step in following:
            after = canonical(step)
            if after == world:
                continue
            moved = True
            graph.before.setdefault(after, []).append(world)
            if after not in graph.came_from:
                assert len(graph.came_from) < MAX_STATES, f"fences without end: {graph.history(world)}"
                graph.came_from[after] = (name, world)
                queue.append(after)
        if not moved:
            graph.dead_ends.append(world)
    return graph


CASES = {
    "two faults and a drain": start(faults_left=2, drains_left=1),
    "two faults and a cancel": start(faults_left=2, may_cancel=True),
    "one fault, a drain, a cancel and a deadline": start(
        faults_left=1, drains_left=1, may_cancel=True, may_expire=True
    ),
    "no stream, two faults and a drain": start(streaming=False, faults_left=2, drains_left=1, reports=True),
    "no stream, two faults, a cancel and a deadline": start(
        streaming=False, faults_left=2, may_cancel=True, may_expire=True
    ),
    "pulled, two faults and a drain": start(streaming=False, pulled=True, faults_left=2, drains_left=1, reports=True),
    "pulled, two faults, a cancel and a deadline": start(
        streaming=False, pulled=True, faults_left=2, may_cancel=True, may_expire=True
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_history_splices_a_stream_ends_a_job_twice_or_leaves_it_without_an_end(case: str) -> None:
    check(case, CASES[case])


def check_world(world: World, first: World) -> None:
    """What must hold in every world."""
    if world.outcome == "ok":
        assert world.received == world.result, "spliced"
        assert len(world.received) == NUM_TOKENS
    if world.outcome == "aborted":
        assert world.gateway_faults, "aborted with its gateway alive"
    if world.core.pulled:
        assert world.core.state is not JobState.ASSIGNED, "placed"
    if world.core.state is JobState.FAILED:
        assert world.deadline_passed, "failed without a reason"
    if world.core.state is JobState.CANCELLED:
        assert first.may_cancel, "cancelled without a reason"


def check(case: str, first: World) -> None:
    graph = explore(first)
    print(f"{case}: {len(graph.came_from)} states")
    undisturbed = [w for w in graph.came_from if not w.core.state.ended and not w.core.cancel_requested
                   and not w.deadline_passed]  # fmt: skip
    good = graph.can_reach([w for w in graph.came_from if w.core.state is JobState.SUCCEEDED])
    for world in undisturbed:
        assert world in good, f"no good end any more: {graph.history(world)}"
    ended = [w for w in graph.came_from if w.core.state.ended and (w.outcome or not w.gateways)]
    can_end = graph.can_reach(ended)
    for world in graph.came_from:
        assert world in can_end, f"never ends: {graph.history(world)}"
    for world in graph.dead_ends:
        assert world.core.state.ended, f"stuck: {graph.history(world)}"
        assert world.outcome or not world.gateways, f"the client waits for ever: {graph.history(world)}"


def _finish_under_any_fence(core: Core, **values: Any) -> Change | None:
    return transitions_finish(core, **{**values, "fence": core.fence})


def _release_under_any_fence(core: Core, **values: Any) -> Change | None:
    return transitions_release(core, **{**values, "fence": core.fence})


def _reap_in_spite_of_the_owner(core: Core, *, facts: Facts) -> Change | None:
    return transitions_reap(core, facts=replace(facts, owner_fresh=False))


def _resume_without_a_new_fence(core: Core, **values: Any) -> Change | None:
    change = transitions_resume(core, **values)
    return None if change is None else replace(change, after=replace(change.after, fence=core.fence))


def _take_without_a_new_fence(core: Core, **values: Any) -> Change | None:
    change = transitions_take(core, **values)
    return None if change is None else replace(change, after=replace(change.after, fence=core.fence))


transitions_take = transitions.take
transitions_finish, transitions_release, transitions_reap = transitions.finish, transitions.release, transitions.reap
transitions_resume = transitions.resume


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("finish", _finish_under_any_fence),
        ("release", _release_under_any_fence),
        ("reap", _reap_in_spite_of_the_owner),
        ("resume", _resume_without_a_new_fence),
    ],
)
def test_the_walk_notices_a_broken_rule(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, name, broken)
    with pytest.raises(AssertionError, match=r".+: start"):
        check(name, start(faults_left=1, drains_left=1))


def test_the_walk_notices_a_broken_rule_of_what_is_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "take", _take_without_a_new_fence)
    with pytest.raises(AssertionError, match=r".+: start"):
        check("take", start(streaming=False, pulled=True, faults_left=1))


def test_the_walk_notices_placement_at_workers_that_were_found_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "trusts_the_dead", True)
    with pytest.raises(AssertionError, match="failed without a reason"):
        check("suspects", start(faults_left=1))
