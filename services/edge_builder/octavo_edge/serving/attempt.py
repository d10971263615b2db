"""One attempt at a build: what is known while it runs, why it stops, and how its process has ended. Writes nothing."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from octavo_common.jobs.model import Claimed
from octavo_common.jobs.spec import JobFailure
from octavo_edge.events import Built
from octavo_edge.serving.meters import Seen
from octavo_edge.serving.progress import BuildLog


class Stop(Enum):
    """Why a build is told to stop."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
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

    def ask(self, reason: Stop) -> None:
        """Let it stop; a lost lease counts more than all else, or else the first reason."""
        if self.stop is None or reason is Stop.LOST:
            self.stop = reason
        self.stopped.set()


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
    progress = build_log.progress
    where = f" in {progress.stage}" if progress else ""
    said = next((line for line in reversed(end.words) if line.strip()), "")
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
