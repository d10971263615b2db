"""What the last steps did: a ring buffer that operators read. Not telemetry: nothing of it leaves unasked."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import dropwhile

from octavo_worker.engine.types import StepStats

CAPACITY = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step."""

    # Seconds since the epoch; for display.
    time_s: float
    # Planning to commit.
    duration_s: float
    stats: StepStats


class Records:
    """The newest steps, oldest first. Aborts between steps change the figures of the pool; they are noted too."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._records: deque[StepRecord] = deque(maxlen=capacity)

    def add(self, record: StepRecord) -> None:
        """Note a step; the oldest one goes."""
        self._records.append(record)

    def after(self, step: int) -> list[StepRecord]:
        """Records of the steps after this one."""
        return list(dropwhile(lambda record: record.stats.step <= step, self._records))

    @property
    def latest(self) -> StepRecord | None:
        """The newest one."""
        return self._records[-1] if self._records else None
