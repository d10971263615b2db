"""Single rules that the walk over all histories does not name: losses, back-off, requeues that end, wake-ups."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from octavo_common.jobs import transitions as rules
from octavo_common.jobs.model import MAX_LOSSES, JobState
from octavo_common.jobs.transitions import Core, Facts, gateway_channel, worker_channel

WORKER, OTHER, GATEWAY = UUID(int=1), UUID(int=2), UUID(int=3)
RUNNING = Core(state=JobState.RUNNING, fence=4, worker_id=WORKER)
OVER = Facts(lease_over=True)


def reap(core: Core, facts: Facts = OVER) -> rules.Change:
    change = rules.reap(core, facts=facts)
    assert change is not None
    return change


def test_three_losses_without_progress_fail_a_job_and_each_wait_is_longer() -> None:
    core, delays = RUNNING, []
    for num_losses in range(1, MAX_LOSSES):
        change = reap(core)
        assert (change.after.state, change.after.losses) == (JobState.QUEUED, num_losses)
        delays.append(change.delay_s)
        core = replace(change.after, state=JobState.RUNNING, worker_id=WORKER)
    last = reap(core)
    assert last.after.state is JobState.FAILED
    assert last.failure is not None
    assert last.failure.code == "WORKER_LOST"
    assert 0 < delays[0] < delays[1] <= 2


def test_a_loss_after_progress_does_not_count_and_clears_earlier_ones() -> None:
    core = replace(RUNNING, losses=MAX_LOSSES - 1, total_losses=2, num_tokens=5, loss_tokens=3)
    change = reap(core)
    assert change.after.state is JobState.QUEUED
    assert (change.after.losses, change.after.total_losses, change.after.loss_tokens) == (0, 3, 5)
    assert change.delay_s == 0


def test_repeating_the_tokens_of_an_earlier_attempt_is_no_progress() -> None:
    core = replace(RUNNING, num_tokens=5, loss_tokens=5)
    assert reap(core).after.losses == 1


def test_tokens_that_the_stream_has_sent_are_progress_though_no_heartbeat_told() -> None:
    core = replace(RUNNING, stream_owner=GATEWAY, losses=2)
    change = rules.resume(core, fence=4, owner=GATEWAY, emitted_ids=(7,), facts=Facts())
    assert change is not None
    assert (change.after.state, change.after.losses, change.after.emitted_ids) == (JobState.QUEUED, 0, (7,))


def test_resuming_a_job_that_waits_counts_no_loss_and_bumps_the_fence() -> None:
    core = Core(fence=2, stream_owner=GATEWAY)
    change = rules.resume(core, fence=2, owner=GATEWAY, emitted_ids=(7,), facts=Facts())
    assert change is not None
    assert (change.after.losses, change.after.total_losses, change.after.fence) == (0, 0, 3)


@pytest.mark.parametrize("event", ["reap", "resume", "release"])
@pytest.mark.parametrize(
    ("core", "facts", "state", "code"),
    [
        (replace(RUNNING, cancel_requested=True), OVER, JobState.CANCELLED, "CANCELLED"),
        (RUNNING, replace(OVER, deadline_passed=True), JobState.FAILED, "DEADLINE_EXCEEDED"),
        (replace(RUNNING, cancel_requested=True), replace(OVER, deadline_passed=True), JobState.CANCELLED, "CANCELLED"),
    ],
)
def test_a_requeue_of_a_cancelled_or_late_job_ends_it(
    event: str, core: Core, facts: Facts, state: JobState, code: str
) -> None:
    core = replace(core, stream_owner=GATEWAY)
    change = {
        "reap": lambda: rules.reap(core, facts=facts),
        "resume": lambda: rules.resume(core, fence=4, owner=GATEWAY, emitted_ids=(), facts=facts),
        "release": lambda: rules.release(core, fence=4, emitted_ids=(), facts=facts),
    }[event]()
    assert change is not None
    assert change.failure is not None
    assert (change.after.state, change.failure.code, change.after.fence) == (state, code, 5)


def test_the_reaper_leaves_jobs_whose_lease_runs_or_whose_stream_owner_lives() -> None:
    assert rules.reap(RUNNING, facts=Facts()) is None
    streamed = replace(RUNNING, stream_owner=GATEWAY)
    assert rules.reap(streamed, facts=replace(OVER, owner_fresh=True)) is None
    assert rules.reap(streamed, facts=OVER) is not None


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_no_rule_changes_an_ended_job(state: JobState) -> None:
    core = replace(RUNNING, state=state, stream_owner=GATEWAY)
    facts = Facts(deadline_passed=True, lease_over=True)
    assert rules.assign(core, fence=4, worker=OTHER, facts=Facts()) is None
    assert rules.claim(core, worker=WORKER) is None
    assert rules.take(replace(core, pulled=True), process=WORKER, facts=Facts()) is None
    assert rules.renew(core, fence=4, worker=WORKER, num_tokens=9) is None
    assert rules.finish(core, fence=4, state=JobState.SUCCEEDED) is None
    assert rules.release(core, fence=4, emitted_ids=(), facts=facts) is None
    assert rules.resume(core, fence=4, owner=GATEWAY, emitted_ids=(), facts=facts) is None
    assert rules.reap(core, facts=facts) is None
    assert rules.cancel(core) is None
    assert rules.expire(core, facts=facts) is None
    assert rules.adopt(core, owner=OTHER, emitted_ids=()) is None
    assert rules.detach(core, owner=GATEWAY) is None


def test_a_lost_answer_to_a_finish_is_told_from_a_lost_lease() -> None:
    ended = replace(RUNNING, state=JobState.SUCCEEDED)
    assert rules.finished_before(ended, fence=4, state=JobState.SUCCEEDED)
    assert not rules.finished_before(ended, fence=3, state=JobState.SUCCEEDED)
    assert not rules.finished_before(ended, fence=4, state=JobState.FAILED)


def test_adopting_a_queued_job_takes_the_readers_ids_only_when_they_differ() -> None:
    core = Core(fence=2, stream_owner=GATEWAY, emitted_ids=(1, 2, 3))
    kept = rules.adopt(core, owner=OTHER, emitted_ids=(1, 2))
    assert kept is not None
    assert (kept.after.emitted_ids, kept.after.fence, kept.after.stream_owner) == ((1, 2, 3), 2, OTHER)
    taken = rules.adopt(core, owner=OTHER, emitted_ids=(1, 9))
    assert taken is not None
    assert (taken.after.emitted_ids, taken.after.fence) == ((1, 9), 3)


def test_changes_wake_who_has_to_act() -> None:
    streamed = replace(RUNNING, stream_owner=GATEWAY)
    assert rules.channels(reap(streamed)) == {rules.JOBS_CHANNEL, worker_channel(WORKER), gateway_channel(GATEWAY)}
    asked = rules.cancel(streamed)
    assert asked is not None
    assert rules.channels(asked) == {worker_channel(WORKER), gateway_channel(GATEWAY)}
    ended = rules.cancel(Core(stream_owner=GATEWAY))
    assert ended is not None
    assert rules.channels(ended) == {rules.JOBS_CHANNEL, gateway_channel(GATEWAY)}


def test_a_pulled_kind_is_taken_by_its_service_and_never_placed_and_others_never_taken() -> None:
    placed, pulled = Core(fence=2), Core(fence=2, pulled=True)
    assert rules.assign(pulled, fence=2, worker=WORKER, facts=Facts()) is None
    assert rules.take(placed, process=WORKER, facts=Facts()) is None
    change = rules.take(pulled, process=WORKER, facts=Facts())
    assert change is not None
    assert (change.after.state, change.after.fence, change.after.worker_id) == (JobState.RUNNING, 3, WORKER)
    for reason in (Facts(ready=False), Facts(deadline_passed=True)):
        assert rules.take(pulled, process=WORKER, facts=reason) is None
    assert rules.take(replace(pulled, cancel_requested=True), process=WORKER, facts=Facts()) is None
