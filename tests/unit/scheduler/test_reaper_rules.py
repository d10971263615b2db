"""When the reaper may act: rule 10 of the leases, with a clock that the tests turn."""

from __future__ import annotations

from placement_world import uid

from octavo_common.jobs.model import JobState, Reaped
from octavo_scheduler.reaper import PAGE, Contact, Reaper

LEASE_S = 15.0
OLD_S = 1e6


class ManualClock:
    now = 50.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


class Store:
    def __init__(self):
        self.pages = []
        self.num_calls = 0

    async def reap(self, limit=500):
        self.num_calls += 1
        return self.pages.pop(0) if self.pages else []


def make():
    clock, store = ManualClock(), Store()
    contact = Contact(clock, max_silence_s=5.0)
    return clock, store, contact, Reaper(store, contact, lease_s=LEASE_S)


def poll(clock, contact, seconds):
    for _ in range(int(seconds)):
        clock.now += 1.0
        contact.good()


async def test_nothing_is_reaped_before_a_whole_lease_of_contact():
    clock, store, contact, reaper = make()
    contact.good()
    poll(clock, contact, 15)
    await reaper.run(OLD_S)
    assert store.num_calls == 0
    poll(clock, contact, 1)
    await reaper.run(OLD_S)
    assert store.num_calls == 1


async def test_a_failed_statement_starts_the_wait_anew():
    clock, store, contact, reaper = make()
    contact.good()
    poll(clock, contact, 14)
    contact.lost()
    poll(clock, contact, 15)
    await reaper.run(OLD_S)
    assert store.num_calls == 0
    poll(clock, contact, 2)
    await reaper.run(OLD_S)
    assert store.num_calls == 1


async def test_a_process_that_was_paused_waits_again():
    clock, store, contact, reaper = make()
    contact.good()
    poll(clock, contact, 20)
    clock.now += 60.0
    # Even before it asks anything.
    await reaper.run(OLD_S)
    contact.good()
    poll(clock, contact, 15)
    await reaper.run(OLD_S)
    assert store.num_calls == 0


async def test_nothing_is_reaped_within_a_lease_of_the_servers_start():
    clock, store, contact, reaper = make()
    contact.good()
    poll(clock, contact, 20)
    await reaper.run(LEASE_S)
    assert store.num_calls == 0
    await reaper.run(LEASE_S + 0.1)
    assert store.num_calls == 1


async def test_without_any_contact_nothing_is_reaped():
    clock, store, contact, reaper = make()
    clock.now += 100.0
    await reaper.run(OLD_S)
    assert contact.unbroken_s() == 0.0
    assert store.num_calls == 0


async def test_full_pages_are_followed_by_the_next():
    clock, store, contact, reaper = make()
    contact.good()
    poll(clock, contact, 20)
    full = [Reaped(id=uid(n), state=JobState.QUEUED, fence=2, losses=1) for n in range(PAGE)]
    store.pages = [full, [Reaped(id=uid(9999), state=JobState.FAILED, fence=2, losses=3)]]
    assert await reaper.run(OLD_S) == {"queued": PAGE, "failed": 1}
    assert store.num_calls == 2
