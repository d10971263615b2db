"""How long the loop sleeps after a look at the table: until the beat where nothing can happen untold, else one poll."""

from __future__ import annotations

import pytest
from opentelemetry.metrics import NoOpMeterProvider

from octavo_common.jobs.model import Due, Pruned
from octavo_common.telemetry.instruments import Instruments
from octavo_scheduler.fleet import Fleet
from octavo_scheduler.loop import PlacementLoop
from octavo_scheduler.settings import SchedulerSettings
from octavo_scheduler.spans import NoSpans
from octavo_scheduler.watch import WorkerWatch

POLL_S, LEASE_S = 1.0, 15.0
BEAT_S = LEASE_S / 3


class Over(Exception):
    """The script has ended."""


class ManualClock:
    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


class Listener:
    """Is told nothing: time passes."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.pauses: list[float] = []

    async def wait(self, timeout_s):
        self.pauses.append(timeout_s)
        self.clock.now += timeout_s
        return False

    def wake(self):
        raise AssertionError("nothing was queued")


class Connection:
    async def invalidate(self):
        pass

    async def close(self):
        pass


class Store:
    """A table in which there is, look by look, this to do; the first look takes the lead."""

    def __init__(self, looks: list[Due]) -> None:
        self.looks = looks

    async def lead_connection(self):
        return Connection()

    async def try_lead(self, connection):
        if not self.looks:
            raise Over
        return self.looks.pop(0)

    async def queue(self, limit):
        return []

    async def fleet(self):
        return []

    async def expire_deadlines(self):
        return 1

    async def reap(self, limit):
        return []

    async def prune(self, retention_s):
        return Pruned(num_contents=0, num_jobs=0, num_processes=0)


def due(**changes) -> Due:
    values = {"queued": False, "late": False, "lost": False, "next_s": None, "server_age_s": 1e6}
    return Due(**{**values, **changes})


async def pauses(looks: list[Due], *, now: float, poll_s: float = POLL_S, lease_s: float = LEASE_S):
    """What the loop sleeps after each look; the loop, and the moments of the looks."""
    clock = ManualClock(now)
    fleet, listener = Fleet(clock), Listener(clock)
    loop = PlacementLoop(
        store=Store([due(), *looks]),
        listener=listener,
        fleet=fleet,
        watch=WorkerWatch(fleet, token="t", clock=clock, on_change=listener.wake),
        instruments=Instruments(NoOpMeterProvider().get_meter("test")),
        spans=NoSpans(),
        settings=SchedulerSettings(poll_s=poll_s, lease_s=lease_s),
        clock=clock,
    )
    with pytest.raises(Over):
        await loop.run()
    # The first pause is a poll: nothing was looked at yet.
    assert listener.pauses[0] == poll_s
    return listener.pauses[1:], loop, clock


@pytest.mark.parametrize("next_s", [None, 1.3 * BEAT_S])
async def test_where_nothing_is_due_the_loop_sleeps_until_the_beat(next_s):
    found, _, clock = await pauses([due(next_s=next_s)] * 3, now=100.25)
    # From 101.25, a poll after the start, to 105; then from beat to beat.
    assert found == [3.75, BEAT_S, BEAT_S]
    assert clock.now % BEAT_S == 0


@pytest.mark.parametrize(
    "waits", [{"queued": True}, {"late": True}, {"lost": True}, {"next_s": 1.0}, {"next_s": 0.0}, {"next_s": -3.0}]
)
async def test_while_something_waits_or_a_lease_is_near_its_end_the_loop_polls(waits):
    found, _, _ = await pauses([due(**waits)] * 3 + [due()], now=100.25)
    # The last look, which finds nothing, comes at 104.25.
    assert found == [POLL_S, POLL_S, POLL_S, 0.75]


@pytest.mark.parametrize(("poll_s", "lease_s"), [(1.0, 15.0), (0.2, 15.0), (1.0, 1.0), (7.0, 15.0), (0.2, 0.3)])
@pytest.mark.parametrize("phase", [0.0, 0.09, 0.2, 0.89, 0.91, 0.999])
async def test_no_pause_is_taken_for_a_break_of_the_contact(poll_s, lease_s, phase):
    beat_s = max(poll_s, lease_s / 3)
    now = (1000 + phase) * beat_s - poll_s
    found, loop, _ = await pauses([due()] * 4, now=now, poll_s=poll_s, lease_s=lease_s)
    assert max(found) <= loop._contact._max_silence_s
    assert loop._contact.unbroken_s() == pytest.approx(poll_s + sum(found))
