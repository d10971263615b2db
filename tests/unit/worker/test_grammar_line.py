"""Grammars are compiled a few at once, whoever stops waiting for theirs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from octavo_common.errors import InvalidArgument
from octavo_worker.intake.grammars import NUM_AT_ONCE, GrammarLine, NoGrammars


class SlowGrammars:
    """Compiles when a test lets it, and keeps how many were compiled at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.num_now = self.most = 0

    def compile(self, kind, text=""):
        with self.lock:
            self.num_now += 1
            self.most = max(self.most, self.num_now)
        self.began.release()
        self.permits.acquire()
        with self.lock:
            self.num_now -= 1
        return f"{kind}:{text}"


async def test_those_who_stop_waiting_let_no_more_compile_at_once():
    slow = SlowGrammars()
    line = GrammarLine(slow)
    impatient = [asyncio.create_task(line.compile(("regex", f"{n}"))) for n in range(NUM_AT_ONCE)]
    for _ in impatient:
        await asyncio.to_thread(slow.began.acquire)
    for task in impatient:
        task.cancel()
    await asyncio.gather(*impatient, return_exceptions=True)
    assert all(task.cancelled() for task in impatient)
    later = [asyncio.create_task(line.compile(("regex", f"later {n}"))) for n in range(3)]
    await asyncio.sleep(0.05)
    assert slow.num_now == NUM_AT_ONCE
    slow.permits.release(NUM_AT_ONCE + len(later))
    assert await asyncio.gather(*later) == [f"regex:later {n}" for n in range(3)]
    assert slow.most == NUM_AT_ONCE
    line.close()


async def test_who_waits_for_none_gets_none_and_errors_come_through():
    line = GrammarLine(NoGrammars())
    assert await line.compile(None) == ""
    with pytest.raises(InvalidArgument):
        await line.compile(("regex", "a"))
    line.close()
    for thread in threading.enumerate():
        if thread.name.startswith("grammar"):
            thread.join(timeout=10)
