"""What the scheduler adds to the rows of the workers, with a clock that the tests turn."""

from __future__ import annotations

from placement_world import job, row, uid

from octavo_common.jobs.model import Assignment, FleetJob
from octavo_scheduler import fleet as fleet_module
from octavo_scheduler.fleet import Fleet

W = uid(1, 2)


class ManualClock:
    now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def make():
    clock = ManualClock()
    return Fleet(clock), clock


def look(fleet, rows):
    fleet.update(rows)
    return fleet.views()


def give(fleet, asked, rows):
    fleet.update(rows)
    fleet.assigned(asked, Assignment(job_id=asked.id, fence=asked.fence, worker_id=W))


def test_a_worker_that_drains_or_does_not_serve_gets_nothing():
    fleet, _ = make()
    assert look(fleet, [row(1, draining=True)]) == []
    fleet.set_serving(W, False)
    assert look(fleet, [row(1)]) == []
    fleet.set_serving(W, True)
    assert [view.id for view in look(fleet, [row(1)])] == [W]


def test_a_suspected_worker_gets_nothing_until_a_newer_heartbeat():
    fleet, clock = make()
    fleet.suspect(W)
    clock.now += 3.0
    assert look(fleet, [row(1, heartbeat_age_s=4.0)]) == []
    # Sent before the sign, arrived after it.
    assert look(fleet, [row(1, heartbeat_age_s=2.9)]) == []
    assert len(look(fleet, [row(1, heartbeat_age_s=1.0)])) == 1
    # And the suspicion is over.
    assert len(look(fleet, [row(1, heartbeat_age_s=9.0)])) == 1


def test_a_worker_that_is_being_called_is_waited_for_but_not_long():
    fleet, clock = make()
    fleet.await_contact(W)
    assert look(fleet, [row(1)]) == []
    clock.now += 0.6
    assert len(look(fleet, [row(1)])) == 1
    fleet.await_contact(W)
    fleet.set_serving(W, True)
    assert len(look(fleet, [row(1)])) == 1


def test_an_answer_ends_the_suspicion():
    fleet, _ = make()
    fleet.suspect(W)
    fleet.trust(W)
    assert len(look(fleet, [row(1)])) == 1


def test_a_job_that_comes_back_with_a_loss_makes_its_worker_suspected():
    fleet, _ = make()
    give(fleet, job(1, fence=4), [row(1)])
    assert fleet.learn([job(1, fence=6, resumed=True, losses=1, total_losses=1)]) == [W]
    assert look(fleet, [row(1)]) == []
    # The same return is no second sign.
    fleet.trust(W)
    assert fleet.learn([job(1, fence=6, resumed=True, losses=1, total_losses=1)]) == []


def test_a_job_that_a_worker_gave_back_is_no_sign():
    fleet, _ = make()
    give(fleet, job(1, fence=4, total_losses=2), [row(1)])
    assert fleet.learn([job(1, fence=6, resumed=True, losses=0, total_losses=2)]) == []


def test_an_assignment_that_the_queue_does_not_know_yet_is_no_sign():
    fleet, _ = make()
    give(fleet, job(1, fence=4), [row(1)])
    assert fleet.learn([job(1, fence=4)]) == []
    assert fleet.learn([job(1, fence=5, total_losses=1)]) == []


def test_prompts_sent_are_remembered_up_to_the_workers_blocks_and_reports_are_added():
    fleet, _ = make()
    rows = [row(1, num_blocks=10, load={"prefix_keys": ["reported"], "num_waiting": 3})]  # 160 tokens
    give(fleet, job(1, prefix_keys=("a",), num_prompt_tokens=70), rows)
    give(fleet, job(2, prefix_keys=("b",), num_prompt_tokens=70), rows)
    give(fleet, job(3, prefix_keys=("a",), num_prompt_tokens=70), rows)
    (view,) = look(fleet, rows)
    assert view.prefix_keys == {"a", "b", "reported"}
    assert view.num_waiting == 3
    # a was used last, so b makes room.
    give(fleet, job(4, prefix_keys=("c",), num_prompt_tokens=70), rows)
    (view,) = look(fleet, rows)
    assert view.prefix_keys == {"a", "c", "reported"}


def test_keys_of_a_prompt_stay_while_another_prompt_has_them():
    fleet, _ = make()
    rows = [row(1, num_blocks=20)]  # 320 tokens
    give(fleet, job(1, prefix_keys=("a", "ab"), num_prompt_tokens=150), rows)
    give(fleet, job(2, prefix_keys=("a", "ac"), num_prompt_tokens=150), rows)
    give(fleet, job(3, prefix_keys=("z",), num_prompt_tokens=100), rows)
    (view,) = look(fleet, rows)
    assert view.prefix_keys == {"a", "ac", "z"}


def test_held_jobs_count_for_their_fair_key_also_for_a_scheduler_that_has_just_taken_over():
    fleet, _ = make()
    rows = [row(1, jobs=(FleetJob(uid(1, 1), "alice", 0, 5), FleetJob(uid(2, 1), "acme", 2, 5)))]
    (view,) = look(fleet, rows)
    assert [(h.fair_key, h.lossy) for h in view.held] == [("alice", False), ("acme", True)]


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(fleet_module, "MAX_REMEMBERED", 3)
    fleet, _ = make()
    for number in range(10):
        give(fleet, job(number, fence=1), [row(1)])
    forgotten = [job(number, fence=3, total_losses=1) for number in range(7)]
    assert fleet.learn(forgotten) == []
    assert fleet.learn([job(7, fence=3, total_losses=1)]) == [W]


def test_a_worker_without_a_row_is_forgotten():
    fleet, _ = make()
    give(fleet, job(1, prefix_keys=("a",)), [row(1)])
    fleet.suspect(W)
    fleet.set_serving(W, False)
    assert look(fleet, []) == []
    (view,) = look(fleet, [row(1)])
    assert view.prefix_keys == frozenset()


def test_what_was_given_since_the_last_look_counts_until_the_rows_tell():
    fleet, clock = make()
    assert fleet.age_s > 1e9
    give(fleet, job(1, fair_key="alice", losses=1), [row(1)])
    clock.now += 2.0
    (view,) = fleet.views()
    assert [(h.fair_key, h.lossy) for h in view.held] == [("alice", True)]
    assert fleet.age_s == 2.0
    (view,) = look(fleet, [row(1)])
    assert view.held == ()
