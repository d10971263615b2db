import asyncio
from uuid import uuid4

import pytest

from octavo_common.jobs.spec import JobFailure
from octavo_worker.engine.types import StepStats
from octavo_worker.intake.recent import RecentPrefixes
from octavo_worker.joblog import End, Gate, JobElsewhere, JobLog, LogBook
from octavo_worker.records import Records, StepRecord


class ManualClock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


def log_of(*tokens, fence=1, lead_text=""):
    log = JobLog(uuid4(), fence, lead_text=lead_text)
    log.release(tokens, [f"<{token}>" for token in tokens])
    return log


def test_a_piece_holds_everything_from_its_first_token_on():
    log = log_of(5, 6, 7)
    assert (log.read(1).first_token, log.read(1).token_ids, log.read(1).text) == (1, (6, 7), "<6><7>")
    assert log.read(3).token_ids == ()


def test_the_lead_text_goes_with_the_first_token_and_only_with_it():
    log = log_of(lead_text="prompt ")
    assert log.read(0).text == ""
    log.release([5], ["<5>"])
    assert log.read(0).text == "prompt <5>"
    assert log.read(1).text == ""
    assert log.text == "prompt <5>"


def test_without_tokens_the_lead_text_goes_with_the_end():
    log = log_of(lead_text="prompt ")
    log.finish(End())
    assert log.read(0).text == "prompt "


@pytest.mark.parametrize("close", [lambda log: log.finish(End()), lambda log: log.drop("lost")])
def test_a_closed_log_changes_no_more(close):
    log = log_of(5)
    close(log)
    was = (log.end, log.gone, list(log.ids))
    log.release([6], ["<6>"])
    log.finish(End(failure=JobFailure(code="X", message="x")))
    log.drop("again")
    assert (log.end, log.gone, log.ids) == was


def test_every_change_wakes_those_who_took_the_event_before_it():
    log = log_of()
    for change in (lambda: log.release([1], ["a"]), lambda: log.finish(End())):
        changed = log.changed
        change()
        assert changed.is_set()
    assert not log.changed.is_set()


async def test_a_newer_fence_replaces_the_log_and_drops_the_old_one():
    book, old = LogBook(ManualClock()), log_of(1)
    book.open(old)
    new = JobLog(old.job_id, 3)
    book.open(new)
    assert old.gone
    assert await book.arrival(old.job_id, 3, timeout_s=1) is new
    with pytest.raises(JobElsewhere):
        await book.arrival(old.job_id, 1, timeout_s=1)


async def test_who_comes_before_the_job_is_woken_by_it_and_by_the_end_of_the_worker():
    book, log = LogBook(ManualClock()), log_of(fence=2)
    waiting = asyncio.create_task(book.arrival(log.job_id, 2, timeout_s=5))
    other = asyncio.create_task(book.arrival(uuid4(), 1, timeout_s=5))
    await asyncio.sleep(0)
    book.open(log)
    assert await waiting is log
    book.shut()
    with pytest.raises(JobElsewhere):
        await other


async def test_a_job_that_never_comes_is_given_up():
    with pytest.raises(JobElsewhere):
        await LogBook(ManualClock()).arrival(uuid4(), 1, timeout_s=0.01)


async def test_a_log_lives_a_minute_after_its_end_and_not_longer():
    clock, log = ManualClock(), log_of(1)
    book = LogBook(clock)
    book.open(log)
    log.finish(End())
    book.close(log)
    clock.now += 59.9
    book.expire()
    assert await book.arrival(log.job_id, 1, timeout_s=1) is log
    clock.now += 0.2
    book.expire()
    assert len(book) == 0


def test_an_expired_log_does_not_take_its_successor_along():
    clock, old = ManualClock(), log_of(1)
    book = LogBook(clock)
    book.open(old)
    book.close(old)
    book.open(JobLog(old.job_id, 2))
    clock.now += 100
    book.expire()
    assert len(book) == 1


def test_the_gate_closes_four_fifths_of_a_lease_after_the_last_good_renewal_was_sent():
    clock = ManualClock()
    gate = Gate(clock, lease_s=15.0)
    assert not gate.is_open
    # Sent at 100, answered at 103.
    clock.now = 103.0
    gate.renew(100.0)
    clock.now = 111.9
    assert gate.is_open
    clock.now = 112.0
    assert not gate.is_open
    # An answer that was overtaken by a later one does not shorten anything.
    gate.renew(105.0)
    gate.renew(104.0)
    clock.now = 116.9
    assert gate.is_open


async def test_a_reader_waits_at_the_gate_until_a_renewal_is_good_enough():
    clock = ManualClock()
    gate = Gate(clock, lease_s=10.0)
    waiting = asyncio.create_task(gate.wait_open())
    await asyncio.sleep(0)
    gate.renew(90.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.renew(99.0)
    await asyncio.wait_for(waiting, 1)


def test_records_keep_the_newest_steps():
    records = Records(3)
    assert records.latest is None
    for step in range(1, 6):
        records.add(StepRecord(time_s=0.0, duration_s=0.1, stats=StepStats(step=step)))
    assert [record.stats.step for record in records.after(0)] == [3, 4, 5]
    assert [record.stats.step for record in records.after(4)] == [5]
    assert records.after(5) == []


def test_recent_prefixes_forget_the_least_recently_used():
    recent = RecentPrefixes(capacity=3)
    recent.add(["a", "b"])
    recent.add(["c"])
    recent.add(["a", "d"])
    assert recent.keys() == ["c", "a", "d"]
