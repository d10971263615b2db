"""Implements GenerationApi: puts acceptance, streams, jobs and models together for both rims."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from octavo_common.errors import FailedPrecondition, InvalidArgument, OctavoError, Unavailable
from octavo_common.jobs.model import Job, JobState, Principal
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.store import StreamStore
from octavo_common.text.tokenizer import Tokenizer
from octavo_gateway.admission import Admission
from octavo_gateway.auth import KeyRing
from octavo_gateway.checks import check_token_ids
from octavo_gateway.jobs import Jobs, parse_job_id, visible_tenant
from octavo_gateway.models import Catalogue
from octavo_gateway.observe import DISCONNECTED, Observation, Observer, RequestObservation
from octavo_gateway.prompts import Prompts, check_vocabulary
from octavo_gateway.requests import OnDisconnect, ValidRequest
from octavo_gateway.streams import StreamHub
from octavo_gateway.values import AcceptedJob, Finish, ModelInfo, TokenPiece


class Generations:
    """See GenerationApi."""

    def __init__(
        self,
        *,
        keys: KeyRing,
        admission: Admission,
        hub: StreamHub,
        streams: StreamStore,
        jobs: Jobs,
        catalogue: Catalogue,
        prompts: Prompts,
        observer: Observer,
    ) -> None:
        self._keys = keys
        self._admission = admission
        self._hub = hub
        self._streams = streams
        self._jobs = jobs
        self._catalogue = catalogue
        self._prompts = prompts
        self._observer = observer

    async def authenticate(self, key: str | None) -> Principal:
        """Find who a key belongs to. Raises Unauthenticated."""
        return await self._keys.authenticate(key)

    async def accept(
        self,
        principal: Principal,
        request: ValidRequest,
        *,
        traceparent: str | None = None,
        deadline_s: float | None = None,
        streaming: bool = True,
    ) -> AcceptedJob:
        """Commit a request as a job. See GenerationApi."""
        seen = self._observer.begin(request.operation, request.model, traceparent=traceparent, streaming=streaming)
        try:
            return await self._accept(principal, request, seen, deadline_s if streaming else None, streaming)
        except OctavoError as error:
            seen.refused(error.code)
            raise
        except BaseException:
            seen.failed(DISCONNECTED)
            raise

    async def _accept(
        self,
        principal: Principal,
        request: ValidRequest,
        seen: RequestObservation,
        deadline_s: float | None,
        streaming: bool,
    ) -> AcceptedJob:
        if self._hub.draining:
            raise Unavailable("this gateway is about to end", code="DRAINING", hint="try again", retry_after_s=0.1)
        cancels = streaming and request.on_disconnect is OnDisconnect.CANCEL

        def orphaned(job: Job) -> None:
            if cancels:
                self._hub.abandon(job.id, job.tenant)

        num_wakes = self._hub.num_wakes
        with seen.sending() as sent:
            job, created, row = await self._admission.accept(
                principal,
                request,
                owner=self._hub.owner if streaming else None,
                deadline_s=deadline_s,
                traceparent=sent,
                on_orphan=orphaned,
            )
        seen.accepted(job, created=created)
        if row is not None:
            seen.placed(job)
        if not streaming:
            seen.committed()
            return _accepted(job, created, request.on_disconnect, 0, seen)
        if job.stream_owner != self._hub.owner and not job.state.ended:
            job = await self._streams.adopt(job.id, owner=self._hub.owner, tenant=job.tenant, emitted_ids=())
        timeout_s = request.timeout_s if request.timeout_s is not None else deadline_s
        try:
            reader = self._hub.open(
                job,
                ((),) * spec_of(job).n,
                request.on_disconnect,
                timeout_s=timeout_s if created else None,
                is_new=created,
                is_queued=created and job.state is JobState.QUEUED and num_wakes == self._hub.num_wakes,
                row=row,
            )
        except Unavailable:
            orphaned(job)
            raise
        return _accepted(job, created, request.on_disconnect, reader, seen)

    async def stream(self, accepted: AcceptedJob) -> AsyncGenerator[TokenPiece | Finish, None]:
        """Yield the job's tokens after those that the caller has, then one Finish. See GenerationApi."""
        seen = accepted.observation
        try:
            async with aclosing(self._hub.read(accepted.reader)) as events:
                async for event in events:
                    if isinstance(event, Finish):
                        seen.finished(event.finish_reason, event.usage)
                    elif event.token_ids:
                        seen.first_token()
                    yield event
        except OctavoError as error:
            seen.failed(error.code)
            raise
        finally:
            seen.failed(DISCONNECTED)

    def leave(self, accepted: AcceptedJob) -> None:
        """The caller reads no more of the stream, or will never begin. After the stream's end nothing happens."""
        self._hub.leave(accepted.reader)
        accepted.observation.failed(DISCONNECTED)

    async def resume(
        self, principal: Principal, job_id: str, token_ids: Sequence[Sequence[int]], on_disconnect: OnDisconnect
    ) -> AcceptedJob:
        """Take a job's stream over for a caller that has these tokens of each answer. See GenerationApi."""
        received = [check_token_ids(ids, "token_ids") for ids in token_ids]
        if self._hub.draining:
            raise Unavailable("this gateway is about to end", code="DRAINING", hint="try again", retry_after_s=0.1)
        found = await self._jobs.get(principal, job_id)
        if found.kind != "generation":
            raise FailedPrecondition(f"job {found.id} is no generation", hint="read it with GetJob")
        spec = spec_of(found)
        if len(received) > spec.n:
            raise InvalidArgument(f"the job has {spec.n} answers, not {len(received)}", param="others")
        received += [()] * (spec.n - len(received))
        await self._check_received(found, spec, received)
        job = await self._streams.adopt(
            parse_job_id(job_id),
            owner=self._hub.owner,
            tenant=visible_tenant(principal),
            emitted_ids=() if spec.restarts else received[0],
        )
        reader = self._hub.open(job, received, on_disconnect)
        return _accepted(job, False, on_disconnect, reader, Observation())

    async def tokenizer(self, accepted: AcceptedJob) -> Tokenizer:
        """The tokenizer of the job's model. See GenerationApi."""
        card = await self._catalogue.by_digest(accepted.model_digest)
        if card is None:
            raise Unavailable(f"the tokenizer of model {accepted.model!r} is not known here now")
        return await self._prompts.tokenizer(card.tokenizer_digest)

    async def _check_received(self, job: Job, spec: GenerationSpec, received: Sequence[Sequence[int]]) -> None:
        """A job may go on from what the caller says it has: that must be something the model could have said."""
        if job.state.ended or not any(received):
            return
        if max(map(len, received)) > spec.max_tokens:
            raise InvalidArgument("there are more token ids than the job may generate", param="token_ids")
        card = await self._catalogue.by_digest(job.model_digest)
        if card is None:
            raise Unavailable(f"no worker serves the model of job {job.id} now", hint="try again", retry_after_s=1.0)
        for ids in received:
            check_vocabulary(ids, card, "token_ids")

    async def job(self, principal: Principal, job_id: str) -> Job:
        """One job. Raises JobNotFound."""
        return await self._jobs.get(principal, job_id)

    async def jobs(
        self, principal: Principal, *, states: Sequence[JobState], model: str, tenant: str, limit: int, after: str
    ) -> tuple[list[Job], bool]:
        """A page of jobs. See GenerationApi."""
        page, more = await self._jobs.list(
            principal, states=states, model=model, tenant=tenant, page_size=limit, before=after
        )
        return page, bool(more)

    async def cancel(self, principal: Principal, job_id: str) -> Job:
        """Ask a job to end. Raises JobNotFound."""
        return await self._jobs.cancel(principal, job_id)

    async def models(self) -> list[ModelInfo]:
        """Models that live workers serve, and those that did a short time ago."""
        return await self._catalogue.list()


def spec_of(job: Job) -> GenerationSpec:
    """What the job asks for."""
    return GenerationSpec.from_json(dict(job.payload))


def _accepted(job: Job, created: bool, on_disconnect: OnDisconnect, reader: int, seen: Observation) -> AcceptedJob:
    spec = spec_of(job)
    return AcceptedJob(
        job_id=job.id,
        created=created,
        model=job.model,
        model_digest=job.model_digest,
        num_prompt_tokens=job.num_prompt_tokens,
        prompt_ids=job.prompt_ids,
        num_choices=spec.n,
        create_time=job.created_at,
        on_disconnect=on_disconnect,
        operation="chat" if spec.operation == "chat" else "text_completion",
        reader=reader,
        observation=seen,
    )
