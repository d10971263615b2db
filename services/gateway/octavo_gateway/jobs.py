"""Reads and steers jobs within what a key may see: a user's key its own tenant's, an admin's all.

Knows no protobuf; the rules of the rows are the store's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from octavo_common.clock import Clock
from octavo_common.errors import InvalidArgument, JobNotFound, PermissionDenied, Unavailable
from octavo_common.jobs.model import Job, JobEvent, JobState, Principal
from octavo_common.store import JobStore
from octavo_gateway.watching import Watches, wait_for_change

DEFAULT_PAGE = 50
MAX_PAGE = 1000
# Watching polls beside what it is told: quickly at first, then once a second.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0


def visible_tenant(principal: Principal) -> str | None:
    """The tenant whose jobs a key may see; None for all."""
    return None if principal.scope == "admin" else principal.tenant


def require_admin(principal: Principal) -> None:
    """Raises PermissionDenied for a user's key."""
    if principal.scope != "admin":
        raise PermissionDenied("this call needs an admin key", hint="`octavo keys create --scope admin` makes one")


def parse_job_id(text: str) -> UUID:
    """A job id. What is none names no job: raises JobNotFound."""
    try:
        return UUID(text)
    except ValueError:
        raise JobNotFound(text[:64]) from None


class Jobs:
    """Jobs as callers see them."""

    def __init__(self, store: JobStore, watches: Watches, clock: Clock) -> None:
        self._store = store
        self._watches = watches
        self._clock = clock
        self._ending = False

    async def get(self, principal: Principal, job_id: str) -> Job:
        """One job. Raises JobNotFound."""
        return await self._store.get(parse_job_id(job_id), tenant=visible_tenant(principal))

    async def list(
        self,
        principal: Principal,
        *,
        states: Sequence[JobState] = (),
        model: str = "",
        tenant: str = "",
        page_size: int = 0,
        before: str = "",
        kind: str = "",
    ) -> tuple[list[Job], str]:
        """A page of jobs, newest first, and the token of the next page (empty on the last)."""
        if page_size < 0 or page_size > MAX_PAGE:
            raise InvalidArgument(f"page_size must be from 0 to {MAX_PAGE}, not {page_size}", param="page_size")
        own = visible_tenant(principal)
        if own is not None and tenant not in ("", own):
            raise PermissionDenied("this key sees its own tenant's jobs only", hint="ask with an admin key")
        limit = page_size or DEFAULT_PAGE
        jobs = await self._store.list(
            tenant=own or tenant or None,
            states=states,
            model=model,
            limit=limit + 1,
            before=_page_token(before),
            kind=kind,
        )
        page = jobs[:limit]
        return page, str(page[-1].id) if len(jobs) > limit else ""

    async def cancel(self, principal: Principal, job_id: str) -> Job:
        """Ask a job to end. Raises JobNotFound."""
        return await self._store.cancel(parse_job_id(job_id), tenant=visible_tenant(principal))

    async def retry(self, principal: Principal, job_id: str) -> Job:
        """Queue a copy of an ended job. Raises JobNotFound, FailedPrecondition."""
        return await self._store.retry(parse_job_id(job_id), tenant=visible_tenant(principal))

    async def events(self, principal: Principal, job_id: str) -> Sequence[JobEvent]:
        """A job's history, oldest first. Raises JobNotFound."""
        return await self._store.events(parse_job_id(job_id), tenant=visible_tenant(principal))

    async def watch(self, principal: Principal, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield the job now and after each change until it has ended. Raises JobNotFound."""
        seen: tuple[object, ...] | None = None
        pause_s = FIRST_PAUSE_S
        async with self._watches.watch(parse_job_id(job_id)) as changed:
            while not self._ending:
                # Before it is read: what changes while it is read is told once more.
                changed.clear()
                try:
                    job = await self.get(principal, job_id)
                except Unavailable:
                    if seen is None:
                        raise
                    # The database restarts; the watch goes on.
                    await self._clock.sleep(LONGEST_PAUSE_S)
                    continue
                now = (job.state, job.fence, job.worker_id, job.losses, job.cancel_requested)
                if now != seen:
                    seen, pause_s = now, FIRST_PAUSE_S
                    yield job
                    if job.state.ended:
                        return
                await wait_for_change(changed, self._clock, pause_s)
                pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        raise Unavailable("this gateway is about to end", code="DRAINING", hint="watch again", retry_after_s=0.1)

    def end_watches(self) -> None:
        """End all watches: this gateway drains."""
        self._ending = True
        self._watches.wake()


def _page_token(text: str) -> UUID | None:
    if not text:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise InvalidArgument("page_token is none that a list has returned", param="page_token") from None
