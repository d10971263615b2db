"""Builds as callers see them, within what a key may see. Knows no protobuf; the rules of the rows are the store's."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import FailedPrecondition, NotFound, Unavailable
from octavo_common.ids import new_job_id
from octavo_common.jobs.builds import BuildProgress, BuildResult
from octavo_common.jobs.model import EDGE_BUILD, Job, JobState, NewJob, Principal
from octavo_common.store import JobStore
from octavo_gateway.admission import of_tenant
from octavo_gateway.builds.builders import BuilderPool, BuildMoved
from octavo_gateway.builds.validation import ValidBuild
from octavo_gateway.jobs import Jobs
from octavo_gateway.observe import Observer

log = structlog.get_logger(__name__)

# How long a builder that does not answer is left alone.
FOLLOW_PAUSE_S = 0.5
# How often a builder is asked that says it does not have the build, before it has told anything of it.
FOLLOW_TRIES = 10
# After a build's end, for what its builder still tells.
LAST_WORDS_S = 2.0


class BuildNotFound(NotFound):
    """There is no such build that the caller may see."""

    code = "BUILD_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no build {job_id!r}", hint="`octavo builds list` shows those that your key may see")


class Builds:
    """Accepts, reads, watches and hands out builds."""

    def __init__(self, *, store: JobStore, jobs: Jobs, builders: BuilderPool, observer: Observer, clock: Clock) -> None:
        self._store, self._jobs, self._builders = store, jobs, builders
        self._observer, self._clock = observer, clock

    async def submit(self, principal: Principal, build: ValidBuild) -> tuple[Job, bool]:
        """Commit a build; False if its idempotency key named one that exists.

        Raises OctavoError: a builder says that it can never be built, no builder is there, QuotaExceeded,
        IdempotencyConflict.
        """
        spec = build.spec
        with self._observer.sending() as traceparent:
            new = NewJob(
                id=new_job_id(),
                kind=EDGE_BUILD,
                tenant=principal.tenant,
                fair_key=of_tenant(principal.tenant, ""),
                model=spec.model,
                model_digest="",
                payload=spec.to_json(),
                prompt_ids=(),
                priority=build.priority,
                timeout_s=build.timeout_s,
                traceparent=traceparent,
                idempotency_key=build.idempotency_key,
                request_digest=_digest(build),
            )
            # Before a builder is asked: what was accepted once is answered also while there is none.
            known = await self._store.existing(new) if new.idempotency_key else None
            if known is not None:
                job, created = known, False
            else:
                await self._builders.check(spec)
                job, created = await self._store.submit(new, max_queued=principal.limits.max_queued)
        if created:
            self._observer.accepted_build()
        log.info("build.accepted" if created else "build.joined", job_id=str(job.id), tenant=job.tenant)
        return job, created

    async def get(self, principal: Principal, job_id: str) -> tuple[Job, BuildProgress | None]:
        """One build, and how far it is if it runs. Raises BuildNotFound."""
        job = await self._get(principal, job_id)
        return job, await self._progress(job)

    async def list(
        self, principal: Principal, *, states: Sequence[JobState], tenant: str, page_size: int, before: str
    ) -> tuple[list[tuple[Job, BuildProgress | None]], str]:
        """A page of builds, newest first, and the token of the next page (empty on the last)."""
        page, token = await self._jobs.list(
            principal, states=states, tenant=tenant, page_size=page_size, before=before, kind=EDGE_BUILD
        )
        running = any(job.state is JobState.RUNNING for job in page)
        told = await self._builders.progress() if running else {}
        return [(job, told.get((str(job.id), job.fence))) for job in page], token

    async def watch(self, principal: Principal, job_id: str) -> AsyncGenerator[Job | Any, None]:
        """The build now and after each change, with what its builder tells between (as messages), until it has ended.

        Raises BuildNotFound.
        """
        await self._get(principal, job_id)
        events: asyncio.Queue[Job | Exception | Any] = asyncio.Queue(maxsize=64)
        watcher = asyncio.create_task(self._watch_job(principal, job_id, events), name="watch build")
        follower: asyncio.Task[None] | None = None
        followed: int | None = None
        try:
            while True:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, Job):
                    if event.state.ended:
                        for told in await self._last_words(follower, events):
                            yield told
                        yield event
                        return
                    # Not at other changes of the row, as a request to cancel: it would tell all stages again.
                    running = event.fence if event.state is JobState.RUNNING else None
                    if running != followed:
                        await _stopped(follower)
                        follower, followed = None, running
                    if running is not None and follower is None:
                        follower = asyncio.create_task(self._follow(event, events), name="follow build")
                yield event
        finally:
            await _stopped(follower)
            await _stopped(watcher)

    async def download(
        self, principal: Principal, job_id: str, names: Sequence[str], first_offset: int
    ) -> AsyncGenerator[Any, None]:
        """Pieces of files of an ended build, as messages.

        Raises BuildNotFound, NotFound, FailedPrecondition, Unavailable.
        """
        job = await self._get(principal, job_id)
        if not job.state.ended:
            raise FailedPrecondition(f"build {job.id} has not ended", hint="watch it, and download it then")
        result = None if job.result is None else BuildResult.from_json(job.result)
        if result is None or not result.files:
            raise NotFound(f"build {job.id} has no files (any more)", hint="files are kept for a time only")
        async with aclosing(self._builders.read(job.id, result.store, names, first_offset)) as pieces:
            async for piece in pieces:
                yield piece

    async def targets(self) -> dict[str, list[str]]:
        """Targets of the builders that live, with what each lacks."""
        return await self._builders.targets()

    async def _get(self, principal: Principal, job_id: str) -> Job:
        try:
            job = await self._jobs.get(principal, job_id)
        except NotFound:
            raise BuildNotFound(job_id[:64]) from None
        if job.kind != EDGE_BUILD:
            raise BuildNotFound(job_id[:64])
        return job

    async def _progress(self, job: Job) -> BuildProgress | None:
        if job.state is not JobState.RUNNING:
            return None
        return (await self._builders.progress()).get((str(job.id), job.fence))

    async def _watch_job(self, principal: Principal, job_id: str, events: asyncio.Queue[Any]) -> None:
        try:
            async with aclosing(self._jobs.watch(principal, job_id)) as changes:
                async for job in changes:
                    await events.put(job)
        except Exception as error:  # handed to the reader
            await events.put(error)

    async def _follow(self, job: Job, events: asyncio.Queue[Any]) -> None:
        """Pass on what the builder tells of one attempt, each stage once, however often the connection breaks."""
        num_stages, num_moved, told = 0, 0, False
        while True:
            seen = 0
            try:
                async with aclosing(self._builders.follow(job)) as messages:
                    async for message in messages:
                        if message.WhichOneof("event") == "stage":
                            seen += 1
                            if seen <= num_stages:
                                continue
                            num_stages = seen
                        told = True
                        await events.put(message)
                return
            except BuildMoved:
                # The row says that it runs a moment before its builder knows it.
                num_moved += 1
                if told or num_moved == FOLLOW_TRIES:
                    return
                await self._clock.sleep(FOLLOW_PAUSE_S)
            except Unavailable as error:
                log.debug("build.not_followed", job_id=str(job.id), error=error.message)
                await self._clock.sleep(FOLLOW_PAUSE_S)

    async def _last_words(self, follower: asyncio.Task[None] | None, events: asyncio.Queue[Any]) -> list[Any]:
        """What the builder has still to tell of a build whose end is in the row."""
        told: list[Any] = []
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                while follower is not None and not follower.done():
                    getting = asyncio.ensure_future(events.get())
                    try:
                        await asyncio.wait((getting, follower), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        # Also when the time is over: it would take what comes later, for nobody.
                        if getting.done():
                            told.append(getting.result())
                        else:
                            getting.cancel()
        except TimeoutError:
            pass
        while not events.empty():
            told.append(events.get_nowait())
        return [event for event in told if not isinstance(event, Job | Exception)]


async def _stopped(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait((task,))


def _digest(build: ValidBuild) -> str:
    """Names what was asked for; two requests under one idempotency key must agree in it."""
    asked = {"spec": build.spec.to_json(), **{k: v for k, v in asdict(build).items() if k in ("timeout_s", "priority")}}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
