"""One attempt at a build: what is known while it runs, why it stops, and how its process has ended. Writes nothing."""

from __future__ import annotations

import asyncio
import math
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from octavo_common.clock import Clock
from octavo_common.jobs.model import Claimed
from octavo_common.jobs.spec import JobFailure
from octavo_edge.events import Built
from octavo_edge.serving.meters import Seen
from octavo_edge.serving.progress import BuildLog
from octavo_edge.stage import title


class Stop(Enum):
    """Why a build is told to stop."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    # Its process has told nothing for too long.
    STALLED = "stalled"
    # The row is another's by now.
    LOST = "lost"
    # This process ends.
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Running:
    """The build that this process has. State, changed by the loop, the heartbeat and the clock."""

    claimed: Claimed
    log: BuildLog
    seen: Seen
    stop: Stop | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    # When its process has told something last (monotonic seconds).
    heard_s: float = 0.0

    def ask(self, reason: Stop) -> None:
        """Let it stop; a lost lease counts more than all else, or else the first reason."""
        if self.stop is None or reason is Stop.LOST:
            self.stop = reason
        self.stopped.set()

    async def until_stopped(self, clock: Clock, *, stalled_after_s: float) -> None:
        """Wait for a reason to stop. The job's deadline and a silence of ``stalled_after_s`` (0: any) are reasons."""
        in_s = self.claimed.deadline_in_s
        deadline_s = math.inf if in_s is None else clock.monotonic() + in_s
        while not self.stopped.is_set():
            now_s = clock.monotonic()
            silent_until_s = self.heard_s + stalled_after_s if stalled_after_s else math.inf
            if now_s >= deadline_s:
                self.ask(Stop.DEADLINE)
            elif now_s >= silent_until_s:
                self.ask(Stop.STALLED)
            else:
                left_s = min(deadline_s, silent_until_s) - now_s
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s if math.isfinite(left_s) else None):
                        await self.stopped.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How the process of a build has ended."""

    code: int
    built: Built | None
    failure: JobFailure | None
    words: list[str]


def failure_of(end: End, build_log: BuildLog) -> JobFailure | None:
    """Why a build has failed that has not said so itself; None if it has not failed."""
    if end.built is not None:
        if not end.built.failed_targets:
            return None
        return JobFailure(
            code="TARGET_FAILED",
            message=f"not built for {', '.join(end.built.failed_targets)}: {end.built.outcome}",
            hint="what was built for the others can be downloaded",
            status="FAILED_PRECONDITION",
        )
    where, said = _where(build_log), _last_words(end)
    if end.code < 0:
        name = f"signal {-end.code}"
        with suppress(ValueError):
            name = signal.Signals(-end.code).name
        why = "the kernel does that when memory is short" if name == "SIGKILL" else f"its last words: {said[:300]}"
        return JobFailure(
            code="BUILD_CRASHED", message=f"the build's process was ended by {name}{where}", hint=why, status="ABORTED"
        )
    return JobFailure(
        code="BUILD_CRASHED",
        message=f"the build's process ended with exit code {end.code}{where} and said nothing",
        hint=f"its last words: {said[:300]}" if said else "",
        status="ABORTED",
    )


def stalled(end: End, build_log: BuildLog, after_s: float) -> JobFailure:
    """Of a build that was stopped because it told nothing."""
    said = _last_words(end)
    return JobFailure(
        code="BUILD_STALLED",
        message=f"the build's process has told nothing for {after_s / 60:.0f} minutes{_where(build_log)}",
        hint="OCTAVO_EDGE_STALLED_AFTER_S allows more" + (f"; its last words: {said[:300]}" if said else ""),
        status="ABORTED",
    )


def _where(build_log: BuildLog) -> str:
    progress = build_log.progress
    return f" in {title(progress.stage, progress.target)}" if progress else ""


def _last_words(end: End) -> str:
    return next((line for line in reversed(end.words) if line.strip()), "")
