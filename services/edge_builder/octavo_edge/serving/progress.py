"""What is known of the build that runs: its stages and its progress, for those who follow it. Knows no transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

from octavo_common.clock import Clock
from octavo_common.jobs.builds import BuildProgress, BuildStage
from octavo_edge.stage import Progress


class BuildLog:
    """One attempt at one build. Readers come and go; a slow one is told the newest progress only, and every stage."""

    def __init__(self, job_id: UUID, fence: int, clock: Clock) -> None:
        self.job_id, self.fence = job_id, fence
        self._clock, self._begun_s = clock, clock.monotonic()
        self.stages: list[BuildStage] = []
        self._progress: BuildProgress | None = None
        # Whether that is of a stage that runs: of one that has ended its end was told.
        self._steps = False
        self._version = 0
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def elapsed_s(self) -> float:
        """Since it was taken."""
        return self._clock.monotonic() - self._begun_s

    @property
    def progress(self) -> BuildProgress | None:
        """How far it is now; None before its first step."""
        if self._progress is None:
            return None
        return replace(self._progress, elapsed_s=self.elapsed_s, num_stages_done=len(self.stages))

    def step(self, progress: Progress) -> None:
        """Note how far the running stage is."""
        self._progress = BuildProgress(
            stage=progress.stage,
            target=progress.target,
            done=progress.done,
            total=progress.total,
            what=progress.what,
        )
        self._steps = True
        self._tell()

    def stage(self, stage: BuildStage) -> None:
        """Note that a stage has ended."""
        self.stages.append(stage)
        self._steps = False
        self._tell()

    def end(self) -> None:
        """Let the readers go."""
        self._ended = True
        self._tell()

    async def follow(self) -> AsyncIterator[BuildProgress | BuildStage]:
        """What is known, then what comes, until the end."""
        num_stages, version = 0, -1
        while True:
            changed = self._changed
            if num_stages < len(self.stages):
                stage, num_stages = self.stages[num_stages], num_stages + 1
                yield stage
                continue
            if self._ended:
                return
            progress = self.progress
            if progress is not None and self._steps and version != self._version:
                version = self._version
                yield progress
                continue
            await changed.wait()

    def _tell(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()
