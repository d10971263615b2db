"""Takes builds from the job table, one at a time, and sees each to its end. Knows no protobuf and no stages.

Whatever becomes of the process of a build, the row tells it: a crash fails one build, a stop gives it back with the
stages that are kept, and without the lease nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import OctavoError, Unavailable
from octavo_common.jobs.builds import BuildFile, BuildResult, BuildSpec, BuildStage
from octavo_common.jobs.model import Claimed, HeartbeatAnswer, Held
from octavo_common.jobs.spec import JobFailure
from octavo_common.jobs.transitions import DEADLINE
from octavo_common.store import BuildStore, Listener
from octavo_edge.events import Built, failure_event
from octavo_edge.public import without_paths
from octavo_edge.serving.attempt import End, Running, Stop, failure_of, stalled
from octavo_edge.serving.library import Library
from octavo_edge.serving.meters import Meters
from octavo_edge.serving.orders import check, command_line
from octavo_edge.serving.process import BuildProcess
from octavo_edge.serving.progress import BuildLog
from octavo_edge.serving.settings import EdgeSettings
from octavo_edge.stage import Progress

log = structlog.get_logger(__name__)

# Notifications are of all jobs: a busy platform shall not make an idle builder ask all the time.
MIN_PAUSE_S = 0.2
RETRY_S = 0.5


class Builds:
    """The loop of one edge builder, and what its heartbeat and its service need to know of it."""

    def __init__(
        self,
        *,
        process_id: UUID,
        store: BuildStore,
        listener: Listener,
        library: Library,
        meters: Meters,
        settings: EdgeSettings,
        clock: Clock,
        start: Callable[..., Awaitable[BuildProcess]] = BuildProcess.start,
    ) -> None:
        self._id = process_id
        self._store = store
        self._listener = listener
        self._library = library
        self._meters = meters
        self._settings = settings
        self._clock = clock
        self._start = start
        self._draining = False
        self.running: Running | None = None

    # --- for the heartbeat

    def held(self) -> list[Held]:
        """The build whose lease is to be renewed. Its stages are its progress."""
        if self.running is None:
            return []
        job = self.running.claimed.job
        return [Held(job.id, job.fence, len(self.running.log.stages))]

    def load(self) -> Mapping[str, Any]:
        """How far the build is, for those who list."""
        if self.running is None:
            return {"build": None}
        progress = self.running.log.progress
        told = None if progress is None else progress.to_json()
        return {"build": {"job": str(self.running.log.job_id), "fence": self.running.log.fence, "progress": told}}

    def on_answer(self, answer: HeartbeatAnswer) -> None:
        """Act on what the table says."""
        running = self.running
        if running is None:
            return
        if running.log.job_id in answer.lost:
            running.ask(Stop.LOST)
        elif running.log.job_id in answer.cancelled:
            running.ask(Stop.CANCELLED)

    # --- for the service

    def following(self, job_id: UUID, fence: int) -> BuildLog | None:
        """What is known of a build that runs here under this fence."""
        running = self.running
        return running.log if running and (running.log.job_id, running.log.fence) == (job_id, fence) else None

    # --- the loop

    async def run(self) -> None:
        """Take and build until drained."""
        while not self._draining:
            claimed = await self._take()
            if claimed is None:
                if not self._draining:
                    await self._clock.sleep(MIN_PAUSE_S)
                    await self._listener.wait(self._settings.poll_s)
                continue
            await self._build(claimed)

    def drain(self) -> None:
        """Take nothing new, and give back what runs."""
        self._draining = True
        if self.running is not None:
            self.running.ask(Stop.DRAINING)
        self._listener.wake()

    async def _take(self) -> Claimed | None:
        try:
            return await self._store.take(self._id, lease_s=self._settings.lease_s)
        except Unavailable as error:
            log.warning("build.not_taken", error=error.message)
        except Exception:  # the top of a loop
            log.exception("build.not_taken")
        return None

    async def _build(self, claimed: Claimed) -> None:
        job = claimed.job
        build_log = BuildLog(job.id, job.fence, self._clock)
        running = self.running = Running(claimed, build_log, self._meters.begin(claimed))
        if self._draining:
            running.ask(Stop.DRAINING)
        log.info("build.taken", job_id=str(job.id), model=job.model, fence=job.fence, wait_s=claimed.wait_s)
        outcome = "failed"
        try:
            outcome = await self._see_through(running)
        except Exception as error:  # the top of a loop: the next build may fare better
            log.exception("build.fault", job_id=str(job.id))
            await self._end(running, failure=failure_event(error))
        finally:
            self.running = None
            build_log.end()
            running.seen.end(outcome, build_log.stages)
            log.info("build.left", job_id=str(job.id), outcome=outcome, elapsed_s=build_log.elapsed_s)

    async def _see_through(self, running: Running) -> str:
        """Run the process to its end and write that into the row; returns what became of the build."""
        try:
            spec = BuildSpec.from_json(running.claimed.job.payload)
            await asyncio.to_thread(check, spec, self._settings.places)
            recipe = await asyncio.to_thread(self._library.open, running.log.job_id, running.log.fence, spec)
            end = await self._attend(running, spec, recipe)
        except OctavoError as error:
            return await self._end(running, failure=failure_event(error))
        job_id, fence = running.log.job_id, running.log.fence
        if running.stop is Stop.LOST:
            await asyncio.to_thread(self._library.drop_attempt, job_id, fence)
            return Stop.LOST.value
        if end.built is None and running.stop is Stop.DRAINING:
            await asyncio.to_thread(self._library.drop_attempt, job_id, fence)
            await self._persist(lambda: self._store.release(job_id, fence, ()), "released")
            return Stop.DRAINING.value
        if end.built is None and running.stop is Stop.CANCELLED:
            return await self._end(running, cancelled=True)
        if end.built is None and running.stop is Stop.DEADLINE:
            return await self._end(running, failure=DEADLINE, outcome=f"failed: {DEADLINE.message}")
        if end.built is None and running.stop is Stop.STALLED:
            return await self._end(running, failure=stalled(end, running.log, self._settings.stalled_after_s))
        failure = end.failure or failure_of(end, running.log)
        outcome = f"failed: {failure.message}" if end.built is None and failure else ""
        try:
            files = await asyncio.to_thread(self._library.close, job_id, fence)
        except OctavoError as error:
            return await self._end(running, failure=failure or failure_event(error))
        return await self._end(
            running, failure=failure, files=files, outcome=outcome or (end.built.outcome if end.built else "")
        )

    async def _attend(self, running: Running, spec: BuildSpec, recipe: Path) -> End:
        """Run the process, listen to it, and stop it when there is a reason."""
        folders = self._library.folders(running.log.job_id, running.log.fence, self._settings.data_dir)
        line = command_line(spec, recipe=str(recipe), folders=folders)
        process = await self._start(line, self._settings.child_environment())
        running.heard_s = self._clock.monotonic()
        stopping = asyncio.create_task(self._stop_when_asked(process, running), name="build stop")
        built: Built | None = None
        failure: JobFailure | None = None
        try:
            async for event in process.events():
                running.heard_s = self._clock.monotonic()
                if isinstance(event, Progress):
                    running.log.step(event)
                elif isinstance(event, BuildStage):
                    if event.warnings:
                        log.warning(
                            "build.warned", job_id=str(running.log.job_id), stage=event.stage, warnings=event.warnings
                        )
                    told = tuple(self._public(running, warning) for warning in event.warnings)
                    running.log.stage(replace(event, warnings=told))
                elif isinstance(event, Built):
                    built = event
                else:
                    failure = event
            code = await process.wait()
        finally:
            stopping.cancel()
            process.kill()
        return End(code=code, built=built, failure=failure, words=process.words)

    async def _stop_when_asked(self, process: BuildProcess, running: Running) -> None:
        await running.until_stopped(self._clock, stalled_after_s=self._settings.stalled_after_s)
        log.info("build.stopping", job_id=str(running.log.job_id), why=running.stop.value if running.stop else "")
        if running.stop is not Stop.LOST:
            process.ask_to_stop()
            await self._clock.sleep(self._settings.grace_s)
        process.kill()

    async def _end(
        self,
        running: Running,
        *,
        failure: JobFailure | None = None,
        cancelled: bool = False,
        files: tuple[BuildFile, ...] = (),
        outcome: str = "",
    ) -> str:
        job_id, fence = running.log.job_id, running.log.fence
        if not files:
            await asyncio.to_thread(self._library.drop_attempt, job_id, fence)
        result = BuildResult(
            outcome=self._public(running, outcome or (f"failed: {failure.message}" if failure else "cancelled")),
            seconds=running.log.elapsed_s,
            store=self._library.id,
            stages=tuple(running.log.stages),
            files=files,
        )
        word = "cancelled" if cancelled else "failed" if failure else "succeeded"
        if failure is not None:
            said = {"error": failure.message, "hint": failure.hint}
            log.warning("build.failed", job_id=str(job_id), code=failure.code, **said)
            running.seen.failed(failure.code)
            failure = replace(
                failure,
                message=self._public(running, failure.message),
                hint=self._public(running, failure.hint),
            )

        async def write() -> bool:
            return await self._store.end(job_id, fence, result=result, failure=failure, cancelled=cancelled)

        if not await self._persist(write, word):
            await asyncio.to_thread(self._library.drop_attempt, job_id, fence)
            return Stop.LOST.value
        # Only now: until the row has ended, another attempt may be at work beside.
        if files:
            await asyncio.to_thread(self._library.keep_only, job_id, fence)
        else:
            await asyncio.to_thread(self._library.drop, job_id)
        return word

    def _public(self, running: Running, text: str) -> str:
        """As whoever asked for the build may read it; the log has it in full."""
        places = (self._settings.edge_dir, self._settings.data_dir.absolute())
        return without_paths(text, places=places, keep=running.claimed.job.model)

    async def _persist(self, write: Callable[[], Awaitable[bool]], what: str) -> bool:
        """Write until the database has answered: what was built is not lost. False: the lease was."""
        while True:
            try:
                return await write()
            except Unavailable as error:
                log.warning("build.not_written", what=what, error=error.message)
                await self._clock.sleep(RETRY_S)
