"""Builds for devices, over asyncio. Knows no rules: those are in calls_builds, retry and downloads."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from octavo import calls, calls_builds
from octavo.aio_wire import AsyncWire
from octavo.build_values import Build, BuildEvent, BuildFile, BuildTarget
from octavo.clock import new_idempotency_key
from octavo.downloads import Download, NewEvents, OnBytes
from octavo.errors import OctavoError, UnavailableError, from_rpc_error, still_waiting
from octavo.fields import check_number
from octavo.retry import Patience, is_broken
from octavo.values import JobState


class AsyncBuilds:
    """Asks for builds, follows them and fetches what they have made. A build's id is that of its job."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def submit(self, model: str, **parameters: Any) -> Build:
        """Ask for a build; see ``octavo.calls_builds.submit_build`` for the parameters.

        Raises the error of whatever is wrong with it and can be seen without the model; the rest fails the job.
        """
        if not parameters.get("idempotency_key"):
            parameters["idempotency_key"] = new_idempotency_key()
        return await self._wire.unary(calls_builds.submit_build(model, **parameters))

    async def get(self, build_id: str) -> Build:
        """Read one build; raises NotFoundError."""
        return await self._wire.unary(calls_builds.get_build(build_id))

    async def list(self, *, states: Sequence[JobState | str] = (), tenant: str = "", limit: int = 50) -> list[Build]:
        """Read the newest builds, without results, recipe texts and options. ``tenant`` needs an admin key."""
        found: list[Build] = []
        token = ""
        while len(found) < limit:
            size = min(calls.MAX_PAGE, limit - len(found))
            page, token = await self._wire.unary(
                calls_builds.list_builds(states=states, tenant=tenant, page_size=size, page_token=token)
            )
            found += page
            if not token:
                break
        return found

    async def cancel(self, build_id: str) -> Build:
        """Ask a build to end; returns it as it is after that."""
        await self._wire.unary(calls.cancel_job(build_id))
        return await self.get(build_id)

    async def targets(self) -> list[BuildTarget]:
        """List what can be built for."""
        return await self._wire.unary(calls_builds.list_targets())

    async def watch(self, build_id: str, *, timeout_s: float | None = None) -> AsyncGenerator[BuildEvent, None]:
        """Yield the build now and after each change, its progress and each stage's end between, until it has ended.

        Survives its gateway. A build that goes on at another builder tells its stages again. Raises
        DeadlineExceededError, code WAIT_TIMEOUT, after ``timeout_s``: the build goes on.
        """
        clock = self._wire.clock
        patience, new = Patience(self._wire.policy), NewEvents()
        deadline_s = None if timeout_s is None else clock.monotonic() + check_number(timeout_s, "timeout_s")
        while True:
            remaining_s = None if deadline_s is None else max(0.001, deadline_s - clock.monotonic())
            failure: OctavoError = UnavailableError("the watch ended before the build", job_id=build_id)
            call = calls_builds.watch_build(build_id)
            answers = self._wire.open(call, remaining_s)
            new.begin()
            try:
                async for answer in answers:
                    event = call.parse(answer)
                    patience.progress()
                    if event is not None and new.is_new(event):
                        yield event
                    if isinstance(event, Build) and event.state.ended:
                        return
            except grpc.RpcError as rpc_error:
                failure = from_rpc_error(rpc_error, job_id=build_id)
            finally:
                answers.cancel()
            if timeout_s is not None and failure.status == "DEADLINE_EXCEEDED" and not failure.told:
                raise still_waiting(build_id, timeout_s) from failure
            if not is_broken(failure):
                raise failure
            self._wire.move()
            await clock.sleep(patience.delay_s(failure, now_s=clock.monotonic(), jitter=clock.jitter()))

    async def wait(self, build_id: str, timeout_s: float | None = None) -> Build:
        """Wait until a build has ended; returns it with its result or raises DeadlineExceededError."""
        async with aclosing(self.watch(build_id, timeout_s=timeout_s)) as events:
            async for event in events:
                if isinstance(event, Build) and event.state.ended:
                    return event
        raise UnavailableError("the watch ended before the build", job_id=build_id)

    async def download(
        self,
        build_id: str,
        out: str | os.PathLike[str],
        *,
        names: Sequence[str] = (),
        on_bytes: OnBytes | None = None,
    ) -> list[BuildFile]:
        """Fetch the files of an ended build, or some of them, into a new directory, which appears when all are whole.

        Every file is held against its sha256; a connection that breaks is begun again where it broke. ``on_bytes`` is
        called with the bytes that are here and those that are to come in all.
        """
        clock, patience = self._wire.clock, Patience(self._wire.policy)
        with Download(await self.get(build_id), out, names, on_bytes) as download:
            while (left := download.left()) is not None:
                call = calls_builds.download_build(build_id, *left)
                answers = self._wire.open(call, None)
                failure: OctavoError = UnavailableError("the download ended before its files", job_id=build_id)
                try:
                    async for answer in answers:
                        download.take(call.parse(answer))
                        patience.progress()
                    if download.left() is None:
                        break
                except grpc.RpcError as rpc_error:
                    failure = from_rpc_error(rpc_error, job_id=build_id)
                finally:
                    answers.cancel()
                if not is_broken(failure):
                    raise failure
                self._wire.move()
                await clock.sleep(patience.delay_s(failure, now_s=clock.monotonic(), jitter=clock.jitter()))
            return download.finish()
