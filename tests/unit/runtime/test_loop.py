"""The engine's thread, over the real engine and an executor whose answers are known."""

from __future__ import annotations

import threading
import time

import psutil
import pytest
from fakes.engines import Bench
from fakes.tiny_executor import TinyExecutor, expected_output

from octavo_common.clock import SystemClock
from octavo_worker.engine.types import FinishReason, Request, SamplingParams, SeqId
from octavo_worker.runtime.loop import EngineLoop


class GatedExecutor(TinyExecutor):
    """Makes a step only when a test lets it."""

    def __init__(self):
        super().__init__(num_blocks=64, block_size=4)
        self.permits = threading.Semaphore(0)

    def run(self, plan):
        self.permits.acquire()
        return super().run(plan)


class Listener:
    """Collects what the loop says, and lets a test wait for it."""

    def __init__(self):
        self.changed = threading.Condition()
        self.deltas = []
        self.steps = []
        self.crashes = []

    def on_deltas(self, deltas, stats, step_s):
        with self.changed:
            self.deltas += deltas
            self.steps.append((stats.step, step_s, threading.current_thread().name))
            self.changed.notify_all()

    def on_crash(self, error):
        with self.changed:
            self.crashes.append(error)
            self.changed.notify_all()

    def wait(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, timeout=30), self.deltas

    def tokens(self, name):
        return [token for delta in self.deltas if delta.id.request == name for token in delta.tokens]

    def finish(self, name):
        return next((d.finish for d in self.deltas if d.id.request == name and d.finish), None)


@pytest.fixture
def make_loop():
    loops = []

    def make():
        loop, listener = EngineLoop(Bench().engine, clock=SystemClock()), Listener()
        loop.start(listener.on_deltas, listener.on_crash)
        loops.append(loop)
        return loop, listener

    yield make
    for loop in loops:
        loop.stop()
    assert not [t for t in threading.enumerate() if t.name == "engine"]


def request(name, prompt=(1, 2, 3), max_tokens=8):
    return Request(id=name, prompt=prompt, params=SamplingParams(max_tokens=max_tokens))


def test_requests_from_any_thread_are_answered_in_full(make_loop):
    loop, listener = make_loop()
    threads = [threading.Thread(target=loop.submit, args=(request(f"r{i}", (i + 1, 2, 3)),)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    listener.wait(lambda: all(listener.finish(f"r{i}") for i in range(20)))
    for i in range(20):
        assert tuple(listener.tokens(f"r{i}")) == tuple(expected_output(request(f"r{i}", (i + 1, 2, 3)), 256))
    assert {name for _, _, name in listener.steps} == {"engine"}


def test_whatever_goes_wrong_while_a_request_is_added_ends_it_alone(monkeypatch):
    bench = Bench()
    root = bench.engine._scheduler._root

    def failing(asked):
        if asked.id == "bad":
            raise RuntimeError("planted failure")
        return root(asked)

    monkeypatch.setattr(bench.engine._scheduler, "_root", failing)
    loop, listener = EngineLoop(bench.engine, clock=SystemClock()), Listener()
    loop.start(listener.on_deltas, listener.on_crash)
    try:
        for name in ("before", "bad", "after"):
            loop.submit(request(name))
        listener.wait(lambda: all(listener.finish(name) for name in ("before", "bad", "after")))
        (delta,) = [delta for delta in listener.deltas if delta.id.request == "bad"]
        assert (delta.finish, delta.error, delta.refusal) == (FinishReason.ERROR, "RuntimeError: planted failure", "")
        for name in ("before", "after"):
            assert tuple(listener.tokens(name)) == tuple(expected_output(request(name), 256))
        assert not listener.crashes
        bench.assert_empty()
    finally:
        loop.stop()


def test_an_abort_ends_a_request_and_an_unknown_one_is_no_error(make_loop):
    loop, listener = make_loop()
    loop.abort("nobody")
    loop.submit(request("long", max_tokens=150))
    listener.wait(lambda: listener.tokens("long"))
    loop.abort("long")
    listener.wait(lambda: listener.finish("long"))
    assert listener.finish("long") in (FinishReason.ABORTED, FinishReason.LENGTH)


def test_one_choice_is_aborted_and_the_others_of_its_request_are_answered_in_full(make_loop):
    loop, listener = make_loop()
    params = SamplingParams(max_tokens=60, temperature=1.0)
    asked = Request(id="a", prompt=(1, 2, 3), params=params, num_choices=2)
    loop.submit(asked)
    listener.wait(lambda: listener.tokens("a"))
    loop.abort_choice(SeqId("a", 1))
    listener.wait(lambda: {d.id.choice for d in listener.deltas if d.finish} == {0, 1})
    ends = {delta.id.choice: delta.finish for delta in listener.deltas if delta.finish}
    assert ends[0] is FinishReason.LENGTH and ends[1] in (FinishReason.ABORTED, FinishReason.LENGTH)
    tokens = [token for delta in listener.deltas if delta.id.choice == 0 for token in delta.tokens]
    assert tokens == expected_output(asked, 256)


@pytest.mark.parametrize("stage", ["waiting", "mid_prompt", "decoding"])
def test_the_step_after_an_abort_finds_the_blocks_back(stage):
    executor = GatedExecutor()
    bench = Bench(executor=executor, max_sequences=1, max_chunk_tokens=4)
    loop, listener = EngineLoop(bench.engine, clock=SystemClock()), Listener()
    loop.start(listener.on_deltas, listener.on_crash)

    def steps(count):
        executor.permits.release(count)
        listener.wait(lambda: sum(step_s > 0 for _, step_s, _ in listener.steps) == count + before)

    before = 0
    try:
        if stage == "waiting":
            loop.submit(request("other", max_tokens=150))
            steps(2)
            before += 2
        loop.submit(request("gone", prompt=tuple(range(40)), max_tokens=150))
        steps(1 if stage != "decoding" else 14)
        before += 1 if stage != "decoding" else 14
        assert bool(listener.tokens("gone")) == (stage == "decoding")
        loop.abort("gone")
        # The step that runs at that moment; nothing else is let through.
        steps(1)
        listener.wait(lambda: listener.finish("gone"))
        assert listener.finish("gone") is FinishReason.ABORTED
        others = {"waiting": 1}.get(stage, 0)
        stats = bench.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (others, 0)
        assert stats.num_used_blocks == (0 if not others else -(-len((1, 2, 3, *listener.tokens("other"))) // 4))
        bench.engine.check_integrity()
    finally:
        executor.permits.release(1000)
        loop.stop()


def test_a_request_that_can_never_run_ends_in_error_and_harms_nobody(make_loop):
    loop, listener = make_loop()
    loop.submit(request("empty", prompt=()))
    loop.submit(request("good"))
    listener.wait(lambda: listener.finish("good") and listener.finish("empty"))
    assert listener.finish("empty") is FinishReason.ERROR
    assert listener.finish("good") is FinishReason.LENGTH


def test_an_idle_loop_costs_nothing(make_loop):
    loop, listener = make_loop()
    loop.submit(request("first"))
    listener.wait(lambda: listener.finish("first"))
    time.sleep(0.05)
    assert not loop.has_work
    before = psutil.Process().num_ctx_switches().voluntary
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.05
    assert psutil.Process().num_ctx_switches().voluntary - before < 50


def test_progress_is_counted_from_the_arrival_of_work(make_loop):
    loop, listener = make_loop()
    started = loop.last_progress_s
    time.sleep(0.05)
    loop.submit(request("first"))
    listener.wait(lambda: listener.finish("first"))
    assert loop.last_progress_s >= started + 0.05


def test_a_crash_is_reported_and_the_thread_ends(make_loop, monkeypatch):
    loop, listener = make_loop()

    def broken():
        raise RuntimeError("books do not balance")

    monkeypatch.setattr(loop._engine, "step", broken)
    loop.submit(request("first"))
    listener.wait(lambda: listener.crashes)
    assert str(listener.crashes[0]) == "books do not balance"


def test_stop_waits_for_the_thread_with_work_left(make_loop):
    loop, listener = make_loop()
    loop.submit(request("long", max_tokens=150))
    listener.wait(lambda: listener.tokens("long"))
    loop.stop()
    assert not [t for t in threading.enumerate() if t.name == "engine"]
