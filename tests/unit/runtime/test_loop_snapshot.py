"""The engine's thread is asked how the pool stands, between its steps."""

import threading

import pytest
from fakes.engines import Bench
from fakes.tiny_executor import TinyExecutor

from octavo_common.clock import SystemClock
from octavo_worker.engine.types import Request, SamplingParams
from octavo_worker.runtime.loop import EngineLoop

WAIT_S = 20


class GatedExecutor(TinyExecutor):
    """Makes a step only when a test lets it."""

    def __init__(self):
        super().__init__(num_blocks=64, block_size=4)
        self.entered, self.permits = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, plan):
        self.entered.release()
        self.permits.acquire()
        return super().run(plan)


@pytest.fixture
def gated():
    executor = GatedExecutor()
    loop = EngineLoop(Bench(executor=executor).engine, clock=SystemClock())
    crashes = []
    loop.start(lambda *_: None, crashes.append)
    yield executor, loop
    executor.permits.release(1000)
    loop.stop()
    assert not crashes


def request(name, num_tokens=10):
    return Request(id=name, prompt=tuple(range(num_tokens)), params=SamplingParams(max_tokens=5))


def test_an_idle_engine_answers_at_once_and_stays_idle(gated):
    _, loop = gated
    snapshot = loop.snapshot().result(WAIT_S)
    assert (snapshot.step, snapshot.holders, sum(snapshot.refs)) == (0, (), 0)
    for _ in range(100):
        if not loop.has_work:
            break
        threading.Event().wait(0.01)
    assert not loop.has_work


def test_a_running_engine_answers_after_its_step(gated):
    executor, loop = gated
    loop.submit(request("a"))
    assert executor.entered.acquire(timeout=WAIT_S)
    asked = loop.snapshot()
    assert not asked.done()
    executor.permits.release()
    snapshot = asked.result(WAIT_S)
    assert snapshot.step == 1
    (holder,) = snapshot.holders
    assert (holder.id.request, holder.num_computed, holder.num_tokens) == ("a", 10, 11)


def test_who_does_not_wait_any_more_harms_nobody(gated):
    executor, loop = gated
    loop.submit(request("a"))
    assert executor.entered.acquire(timeout=WAIT_S)
    asked = loop.snapshot()
    assert asked.cancel()
    executor.permits.release(1000)
    assert loop.snapshot().result(WAIT_S).step >= 1
