"""Turns a valid request into a row of the job table. Accepted means committed.

Knows no protobuf and no streams; draws the seed, computes prefix keys, and names the request for idempotency.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from uuid import UUID

import structlog

from octavo_common.clock import Clock
from octavo_common.errors import DeadlineExceeded, Unavailable
from octavo_common.ids import new_job_id, new_seed
from octavo_common.jobs.model import Job, NewJob, OwnedJob, Principal, ProcessRecord
from octavo_common.jobs.spec import GenerationSpec, ModelCard
from octavo_common.prefix import prefix_keys
from octavo_common.store import JobStore
from octavo_gateway.direct import Direct, NoDirect, row_of
from octavo_gateway.models import Catalogue
from octavo_gateway.prompts import PreparedPrompt, Prompts
from octavo_gateway.requests import OnDisconnect, Steering, ValidRequest

log = structlog.get_logger(__name__)

SUBMIT_PAUSES_S = (0.2, 0.5, 1.0, 1.5)


class Admission:
    """The way into the job table."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        catalogue: Catalogue,
        prompts: Prompts,
        direct: Direct | NoDirect,
        clock: Clock,
    ) -> None:
        self._jobs = jobs
        self._clock = clock
        self._catalogue = catalogue
        self._prompts = prompts
        self._direct = direct

    async def accept(
        self,
        principal: Principal,
        request: ValidRequest,
        *,
        owner: UUID | None,
        deadline_s: float | None,
        traceparent: str,
        on_orphan: Callable[[Job], None],
    ) -> tuple[Job, bool, OwnedJob | None]:
        """Commit a request. Returns its job, False if its idempotency key named one that exists, and what the row of a
        job says that has a worker already.

        `owner` is the gateway that streams it, if one does. Calls `on_orphan` for a job that was committed although its
        caller was cancelled meanwhile. Raises ModelNotFound, PromptTooLong, InvalidArgument, QuotaExceeded,
        IdempotencyConflict, DeadlineExceeded.
        """
        timeout_s = _timeout(request, deadline_s if owner is not None else None)
        card = await self._catalogue.find(request.model)
        prepared = await self._prompts.prepare(request, card)
        new = _new_job(principal, request, card, prepared, owner=owner, timeout_s=timeout_s, traceparent=traceparent)
        worker = None if owner is None else await self._direct.worker_for(principal, card.digest)
        submitting = asyncio.ensure_future(self._submit(new, principal.limits.max_queued, worker))
        try:
            # The insert cannot be taken back: cancelled halfway, nobody would know whether there is a job.
            job, created = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(lambda done: _report_orphan(done, on_orphan))
            raise
        row = row_of(job, worker) if created else None
        log.info(
            "job.accepted" if created else "job.joined",
            job_id=str(job.id),
            tenant=job.tenant,
            model=job.model,
            num_prompt_tokens=job.num_prompt_tokens,
            **({} if row is None else {"worker_id": str(job.worker_id)}),
        )
        return job, created, row

    async def _submit(self, new: NewJob, max_queued: int | None, worker: ProcessRecord | None) -> tuple[Job, bool]:
        """Write the row. A restarting database is waited for; the same id again is the same job."""
        worker_id = None if worker is None else worker.id
        for pause_s in SUBMIT_PAUSES_S:
            try:
                return await self._jobs.submit(new, max_queued=max_queued, worker_id=worker_id)
            except Unavailable as error:
                log.warning("job.submit_failed", job_id=str(new.id), error=error.message, retry_in_s=pause_s)
                await self._clock.sleep(pause_s)
        return await self._jobs.submit(new, max_queued=max_queued, worker_id=worker_id)


def request_digest(request: ValidRequest) -> str:
    """Names what was asked for; two requests under one idempotency key must agree in it.

    Without what only concerns the connection (on_disconnect) and without the seed that is drawn here.
    """
    asked = {k: v for k, v in asdict(request).items() if k not in ("idempotency_key", "on_disconnect")}
    asked["prompt"] = [type(request.prompt).__name__, asked["prompt"]]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def of_tenant(tenant: str, key: str) -> str:
    """A caller's text as it stands in a row (salt, fair key): never equal for two tenants, whatever they write."""
    return f"{len(tenant)}:{tenant}:{key}"


def _timeout(request: ValidRequest, deadline_s: float | None) -> float | None:
    """Seconds that the job may take. The call's own deadline counts if the job shall not outlive the call."""
    if request.timeout_s is not None:
        return request.timeout_s
    if deadline_s is None or request.on_disconnect is OnDisconnect.DETACH:
        return None
    if deadline_s <= 0:
        raise DeadlineExceeded("the call's deadline has passed")
    return deadline_s


def _new_job(
    principal: Principal,
    request: ValidRequest,
    card: ModelCard,
    prepared: PreparedPrompt,
    *,
    owner: UUID | None,
    timeout_s: float | None,
    traceparent: str,
) -> NewJob:
    salt = of_tenant(principal.tenant, request.cache_salt)
    spec = GenerationSpec(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=new_seed() if request.seed is None else request.seed,
        max_tokens=prepared.max_tokens,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        **_steering(request.steering, prepared),
        include_stop=request.include_stop,
        **asdict(request.answers),
        grammar=request.grammar,
        echo=request.echo,
        operation=request.operation,
    )
    return NewJob(
        id=new_job_id(),
        tenant=principal.tenant,
        fair_key=of_tenant(principal.tenant, request.fair_key or ""),
        cache_salt=salt,
        model=card.name,
        model_digest=card.digest,
        payload=spec.to_json(),
        prompt_ids=prepared.ids,
        prefix_keys=tuple(prefix_keys(prepared.ids, model_digest=card.digest, salt=salt)),
        priority=request.priority,
        stream_owner=owner,
        timeout_s=timeout_s,
        traceparent=traceparent,
        idempotency_key=request.idempotency_key,
        request_digest=request_digest(request),
    )


def _steering(asked: Steering, prepared: PreparedPrompt) -> dict[str, Any]:
    """Fields of a GenerationSpec; what the prompt leaves may be less than the least that was asked for."""
    fields = {name: getattr(asked, name) for name in Steering.__slots__}
    return fields | {
        "bad_words": prepared.bad_words,
        "min_tokens": min(asked.min_tokens, prepared.max_tokens),
    }


def _report_orphan(submitting: asyncio.Future[tuple[Job, bool]], on_orphan: Callable[[Job], None]) -> None:
    if submitting.cancelled() or submitting.exception() is not None:
        return
    job, created = submitting.result()
    if created:
        on_orphan(job)
