"""The public gRPC services. Thin: parse, call, convert; errors and authentication are interceptors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from octavo.v1 import gateway_pb2, gateway_pb2_grpc, jobs_pb2, jobs_pb2_grpc, plan_pb2, pool_pb2
from octavo_common.errors import NotFound, Unavailable
from octavo_common.store import ProcessStore
from octavo_gateway import convert, convert_plan, convert_request, planning
from octavo_gateway.api import GenerationApi
from octavo_gateway.auth import current_principal
from octavo_gateway.jobs import Jobs, require_admin
from octavo_gateway.models import Catalogue
from octavo_gateway.requests import RequestLimits
from octavo_gateway.validation import validate
from octavo_gateway.values import AcceptedJob
from octavo_gateway.workers import WorkerPool

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(gateway_pb2_grpc.GenerationServiceServicer):
    """Generates text. Streaming handlers are generators: instrumentation breaks the other style."""

    def __init__(self, api: GenerationApi, limits: RequestLimits) -> None:
        self._api = api
        self._limits = limits

    async def Generate(
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.GenerateResponse]:
        """Accept a request and stream its tokens."""
        valid = validate(convert_request.raw_request(request.generation), self._limits)
        accepted = await self._api.accept(current_principal(), valid, deadline_s=_time_remaining(context))
        async with aclosing(self._events(accepted)) as events:
            async for event in events:
                yield gateway_pb2.GenerateResponse(event=event)

    async def SubmitGeneration(
        self, request: gateway_pb2.SubmitGenerationRequest, context: Context
    ) -> gateway_pb2.SubmitGenerationResponse:
        """Accept a request without a stream."""
        valid = validate(convert_request.raw_request(request.generation), self._limits)
        accepted = await self._api.accept(current_principal(), valid, streaming=False)
        return gateway_pb2.SubmitGenerationResponse(job_id=str(accepted.job_id), created=accepted.created)

    async def ResumeGeneration(
        self, request: gateway_pb2.ResumeGenerationRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.ResumeGenerationResponse]:
        """Continue the stream of a job behind the tokens that the caller has."""
        on_disconnect = convert_request.on_disconnect(request.on_disconnect)
        received = [list(request.token_ids), *(list(other.ids) for other in request.others)]
        accepted = await self._api.resume(current_principal(), request.job_id, received, on_disconnect)
        async with aclosing(self._events(accepted)) as events:
            async for event in events:
                yield gateway_pb2.ResumeGenerationResponse(event=event)

    async def _events(self, accepted: AcceptedJob) -> AsyncGenerator[gateway_pb2.GenerationEvent, None]:
        try:
            yield convert.accepted_event(accepted)
            async with aclosing(self._api.stream(accepted)) as events:
                async for event in events:
                    yield convert.stream_event(event)
        finally:
            self._api.leave(accepted)


class ModelServicer(gateway_pb2_grpc.ModelServiceServicer):
    """Models that the live workers serve, and what models need."""

    def __init__(self, api: GenerationApi, catalogue: Catalogue) -> None:
        self._api = api
        self._catalogue = catalogue

    async def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: Context
    ) -> gateway_pb2.ListModelsResponse:
        """List them by name."""
        return gateway_pb2.ListModelsResponse(models=[convert.model(m) for m in await self._api.models()])

    async def PlanModel(self, request: plan_pb2.PlanModelRequest, context: Context) -> plan_pb2.PlanModelResponse:
        """Plan for a served model or a known shape."""
        cards = await self._catalogue.cards()
        response = plan_pb2.PlanModelResponse(choices=convert_plan.plan_choices(planning.choices(cards)))
        if request.model:
            plan = planning.answer(convert_plan.plan_request(request), cards)
            response.plan.CopyFrom(convert_plan.model_plan(plan))
        return response


class FleetServicer(gateway_pb2_grpc.FleetServiceServicer):
    """The processes behind the gateway."""

    def __init__(self, processes: ProcessStore, workers: WorkerPool) -> None:
        self._processes = processes
        self._workers = workers

    async def ListWorkers(
        self, request: gateway_pb2.ListWorkersRequest, context: Context
    ) -> gateway_pb2.ListWorkersResponse:
        """List the workers whose heartbeat is fresh, or all."""
        workers = await self._processes.list("worker")
        listed = [convert.worker(w) for w in workers if w.alive or request.include_dead]
        return gateway_pb2.ListWorkersResponse(workers=listed)

    async def GetWorkerRecords(
        self, request: gateway_pb2.GetWorkerRecordsRequest, context: Context
    ) -> gateway_pb2.GetWorkerRecordsResponse:
        """Relay a worker's record of its recent steps."""
        require_admin(current_principal())
        records = await self._workers.records(await self._address(request.worker_id), request.after_step)
        return gateway_pb2.GetWorkerRecordsResponse(records=records)

    async def GetWorkerPool(
        self, request: pool_pb2.GetWorkerPoolRequest, context: Context
    ) -> pool_pb2.GetWorkerPoolResponse:
        """Relay how a worker's pool stands."""
        require_admin(current_principal())
        pool = await self._workers.pool(await self._address(request.worker_id))
        return pool_pb2.GetWorkerPoolResponse(pool=pool)

    async def _address(self, worker_id: str) -> str:
        """Where a live worker is; raises NotFound, Unavailable."""
        found = convert.uuid_or_none(worker_id)
        worker = next((w for w in await self._processes.list("worker") if w.id == found), None)
        if worker is None:
            raise NotFound(f"there is no worker {worker_id!r}", hint="`octavo workers` lists them")
        if not worker.alive:
            raise Unavailable(f"worker {worker.id} is dead", hint="what it knew is gone with it")
        return worker.address


class JobServicer(jobs_pb2_grpc.JobServiceServicer):
    """Reads and steers jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def GetJob(self, request: jobs_pb2.GetJobRequest, context: Context) -> jobs_pb2.GetJobResponse:
        """Read one job."""
        job = await self._jobs.get(current_principal(), request.id)
        return jobs_pb2.GetJobResponse(job=convert.job(job))

    async def ListJobs(self, request: jobs_pb2.ListJobsRequest, context: Context) -> jobs_pb2.ListJobsResponse:
        """List jobs, newest first."""
        jobs, next_page_token = await self._jobs.list(
            current_principal(),
            states=convert.job_states(request.states),
            model=request.model,
            tenant=request.tenant,
            page_size=request.page_size,
            before=request.page_token,
        )
        return jobs_pb2.ListJobsResponse(jobs=[convert.job(job) for job in jobs], next_page_token=next_page_token)

    async def CancelJob(self, request: jobs_pb2.CancelJobRequest, context: Context) -> jobs_pb2.CancelJobResponse:
        """Ask a job to end."""
        job = await self._jobs.cancel(current_principal(), request.id)
        return jobs_pb2.CancelJobResponse(job=convert.job(job))

    async def RetryJob(self, request: jobs_pb2.RetryJobRequest, context: Context) -> jobs_pb2.RetryJobResponse:
        """Queue a copy of an ended job."""
        job = await self._jobs.retry(current_principal(), request.id)
        return jobs_pb2.RetryJobResponse(job=convert.job(job))

    async def WatchJob(
        self, request: jobs_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.WatchJobResponse]:
        """Send the job now and after each change."""
        async with aclosing(self._jobs.watch(current_principal(), request.id)) as changes:
            async for job in changes:
                yield jobs_pb2.WatchJobResponse(job=convert.job(job))

    async def ListJobEvents(
        self, request: jobs_pb2.ListJobEventsRequest, context: Context
    ) -> jobs_pb2.ListJobEventsResponse:
        """List what happened to a job."""
        events = await self._jobs.events(current_principal(), request.id)
        return jobs_pb2.ListJobEventsResponse(events=[convert.job_event(event) for event in events])


def _time_remaining(context: Any) -> float | None:
    """Seconds that the call has left; None without a deadline."""
    return context.time_remaining()
