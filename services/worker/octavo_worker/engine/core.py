"""The engine: plan, run, commit. Pure: whoever calls it owns the thread and the clock."""

from __future__ import annotations

from dataclasses import replace

import structlog

from octavo_worker.engine.plan import NO_KV_DONE, NO_KV_OPS, BatchPlan, RowPlan, RowResult, StepResult
from octavo_worker.engine.ports import Executor
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.snapshot import Snapshot
from octavo_worker.engine.types import Delta, Request, RequestId, RuleBroken, RuleFault, SeqId, StepStats

log = structlog.get_logger(__name__)


class Engine:
    """Continues sequences, many at once, one step at a time. Not thread-safe: one thread owns it."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        self._scheduler = scheduler
        self._executor = executor

    @property
    def has_work(self) -> bool:
        """Whether step() would do anything."""
        return self._scheduler.has_work

    def add(self, request: Request) -> list[Delta]:
        """Take a request; the stop rules are applied to its earlier output first, so it may end at once.

        Raises AdmissionError when it can never run here.
        """
        return self._scheduler.add(request)

    def abort(self, request_id: RequestId) -> list[Delta]:
        """End a request at any stage; its blocks are back when this returns."""
        return self._scheduler.abort(request_id)

    def abort_choice(self, seq_id: SeqId) -> list[Delta]:
        """End one choice after its fork; the others of its request go on."""
        return self._scheduler.abort_choice(seq_id)

    def step(self) -> list[Delta]:
        """Compute one step. A row that makes the executor fail ends alone, with the error."""
        plan = self._scheduler.plan()
        return self._scheduler.commit(plan, self._run(plan))

    def stats(self) -> StepStats:
        """Figures of the last step and of the pool."""
        return self._scheduler.stats()

    def snapshot(self) -> Snapshot:
        """Who holds which block now; a copy."""
        return self._scheduler.snapshot()

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not balance."""
        self._scheduler.check_integrity()

    def _run(self, plan: BatchPlan) -> StepResult:
        """Run a plan; when it raises, halve its rows until one raises alone.

        What the plan carries beside rows goes with the first part that succeeds, and only with it.
        """
        parts: list[tuple[RowPlan, ...]] = [plan.rows]
        news, done = plan, NO_KV_DONE
        rows: dict[SeqId, RowResult] = {}
        while parts:
            part = parts.pop(0)
            try:
                result = self._executor.run(replace(news, rows=part))
            except (KeyboardInterrupt, SystemExit):
                raise
            # Foreign code, whose panics are no Exceptions: whatever comes is a fault of some row until it runs alone.
            except BaseException as error:
                if len(part) > 1:
                    middle = len(part) // 2
                    parts[:0] = [part[:middle], part[middle:]]
                elif len(part) == 1:
                    log.warning("engine.row_failed", request_id=part[0].id.request, exc_info=error)
                    rows[part[0].id] = RowResult(error=_words(error))
                    if not parts and (news.gone or news.forks or news.kv is not NO_KV_OPS):
                        parts.append(())
                else:
                    # No row is at fault: the executor is broken.
                    raise
                continue
            rows.update(result.rows)
            done = result.kv if done is NO_KV_DONE else replace(done, saved=(*done.saved, *result.kv.saved))
            news = BatchPlan(step=plan.step, rows=())
        return StepResult(rows=rows, kv=done)


def _words(error: BaseException) -> str:
    if isinstance(error, RuleBroken):
        return RuleFault(str(error), code=error.code)
    return f"{type(error).__name__}: {error}"
