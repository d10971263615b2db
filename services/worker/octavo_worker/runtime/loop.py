"""The thread that owns the engine. Everybody else talks to it by commands; it answers with deltas. No polling.

Knows no asyncio: the callbacks run in this thread, and whoever receives them hands them on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import assert_never

import structlog

from octavo_common.clock import Clock
from octavo_worker.engine.core import Engine
from octavo_worker.engine.snapshot import Snapshot
from octavo_worker.engine.types import AdmissionError, Delta, FinishReason, Request, RequestId, SeqId, StepStats

log = structlog.get_logger(__name__)

OnDeltas = Callable[[list[Delta], StepStats, float], None]
"""``on_deltas(deltas, stats, step_s)``: after every step; with step_s 0 after an add or abort that said something."""
OnCrash = Callable[[BaseException], None]

# Of a step's time.
PAUSE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class _AbortChoice:
    seq_id: SeqId


@dataclass(frozen=True, slots=True)
class _Look:
    asked: Future[Snapshot]


_Command = _Add | _Abort | _AbortChoice | _Look


class EngineLoop:
    """Runs steps while there is work and sleeps when there is none."""

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._wake = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._busy = False
        self._last_progress_s = clock.monotonic()

    @property
    def has_work(self) -> bool:
        """Whether a step is due or running. With last_progress_s this is what a watchdog needs."""
        return self._busy or bool(self._commands)

    @property
    def last_progress_s(self) -> float:
        """Monotonic time at which the last step ended, or at which work came after a pause."""
        return self._last_progress_s

    def start(self, on_deltas: OnDeltas, on_crash: OnCrash) -> None:
        """Start the thread. After on_crash nothing runs any more, and commands are dropped."""
        assert self._thread is None, "a loop starts once"
        self._thread = threading.Thread(target=self._run, args=(on_deltas, on_crash), name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Take a request; one that can never run is answered with a delta that finishes in error."""
        self._command(_Add(request))

    def abort(self, request_id: RequestId) -> None:
        """End a request at any stage; an unknown one is no error."""
        self._command(_Abort(request_id))

    def abort_choice(self, seq_id: SeqId) -> None:
        """End one choice after its fork; the others of its request go on."""
        self._command(_AbortChoice(seq_id))

    def snapshot(self) -> Future[Snapshot]:
        """Who holds which block, between two steps. Never answered when the thread has ended: wait with a timeout."""
        asked: Future[Snapshot] = Future()
        self._command(_Look(asked))
        return asked

    def stop(self, timeout_s: float | None = None) -> None:
        """End after the step that runs now, and wait for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _command(self, command: _Command) -> None:
        with self._wake:
            if not self.has_work:
                self._last_progress_s = self._clock.monotonic()
            self._commands.append(command)
            self._wake.notify()

    def _run(self, on_deltas: OnDeltas, on_crash: OnCrash) -> None:
        try:
            while self._wait():
                self._take_commands(on_deltas)
                if self._engine.has_work:
                    started_s = self._clock.monotonic()
                    deltas = self._engine.step()
                    self._last_progress_s = self._clock.monotonic()
                    step_s = self._last_progress_s - started_s
                    on_deltas(deltas, self._engine.stats(), step_s)
                    if any("first_token" in delta.events for delta in deltas):
                        self._let_go(step_s * PAUSE_SHARE)
        except BaseException as error:  # the top of the thread: nobody else would hear of it
            try:
                log.exception("engine.crashed")
            finally:
                # Whatever becomes of the line: a worker that does not hear of it would wait for ever.
                on_crash(error)

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when it is time to end."""
        with self._wake:
            self._busy = self._engine.has_work
            while not (self._commands or self._busy or self._stopping):
                self._wake.wait()
            self._busy = True
            return not self._stopping

    def _let_go(self, seconds: float) -> None:
        """Leave interpreter and core to whoever sends a first token on its way; the next step would take both."""
        with self._wake:
            if not self._commands:
                self._wake.wait(seconds)

    def _take_commands(self, on_deltas: OnDeltas) -> None:
        while self._commands:
            deltas = self._obey(self._commands.popleft())
            if deltas:
                on_deltas(deltas, self._engine.stats(), 0.0)

    def _obey(self, command: _Command) -> list[Delta]:
        match command:
            case _Add(request):
                return self._add(request)
            case _Abort(request_id):
                return self._engine.abort(request_id)
            case _AbortChoice(seq_id):
                return self._engine.abort_choice(seq_id)
            case _Look(asked):
                return self._look(asked)
            case _:
                assert_never(command)

    def _look(self, asked: Future[Snapshot]) -> list[Delta]:
        # Whoever asked may have gone.
        if asked.set_running_or_notify_cancel():
            asked.set_result(self._engine.snapshot())
        return []

    def _add(self, request: Request) -> list[Delta]:
        try:
            return self._engine.add(request)
        except AdmissionError as error:
            log.warning("engine.refused", request_id=request.id, code=error.code)
            return [Delta(id=SeqId(request.id, 0), finish=FinishReason.ERROR, error=str(error), refusal=error.code)]
        except Exception as error:  # whatever it is, it is this request's: the others go on
            log.exception("engine.add_failed", request_id=request.id)
            self._engine.abort(request.id)
            return [Delta(id=SeqId(request.id, 0), finish=FinishReason.ERROR, error=f"{type(error).__name__}: {error}")]
