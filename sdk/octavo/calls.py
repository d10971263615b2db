"""Builds every call of the API as a value: its path, its message, how to read the answer. Pure; sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from octavo import parsing
from octavo.fields import build
from octavo.retry import Safety
from octavo.v1 import gateway_pb2, jobs_pb2
from octavo.values import Job, JobEvent, JobHandle, JobState, Model, StepRecord, Worker

T = TypeVar("T")
MAX_PAGE = 1000
_JOB = {"id": "job_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One call. ``parse`` takes an answer of type ``response``; streaming calls answer with many of them."""

    path: str
    request: Message
    response: type[Message]
    parse: Callable[[Message], T]
    safety: Safety = Safety.SAFE


def generate(request: gateway_pb2.Generation) -> Call[gateway_pb2.GenerationEvent]:
    """Accept a request and stream its tokens."""
    return Call(
        path="/octavo.v1.GenerationService/Generate",
        request=gateway_pb2.GenerateRequest(generation=request),
        response=gateway_pb2.GenerateResponse,
        parse=_event,
        safety=Safety.KEYED if request.idempotency_key else Safety.UNSAFE,
    )


def resume(
    job_id: str, token_ids: Iterable[int], *, others: Iterable[Iterable[int]] = (), detach: bool
) -> Call[gateway_pb2.GenerationEvent]:
    """Continue a job's stream after the tokens that the caller has; ``others`` are those of answers after the first."""
    return Call(
        path="/octavo.v1.GenerationService/ResumeGeneration",
        request=gateway_pb2.ResumeGenerationRequest(
            job_id=job_id,
            token_ids=token_ids,
            others=[gateway_pb2.TokenInput(ids=ids) for ids in others],
            on_disconnect=gateway_pb2.ON_DISCONNECT_DETACH if detach else gateway_pb2.ON_DISCONNECT_CANCEL,
        ),
        response=gateway_pb2.ResumeGenerationResponse,
        parse=_event,
    )


def _event(answer: Message) -> gateway_pb2.GenerationEvent:
    assert isinstance(answer, gateway_pb2.GenerateResponse | gateway_pb2.ResumeGenerationResponse)
    return answer.event


def submit(request: gateway_pb2.Generation) -> Call[JobHandle]:
    """Accept a request without a stream."""

    def parse(answer: Message) -> JobHandle:
        assert isinstance(answer, gateway_pb2.SubmitGenerationResponse)
        return JobHandle(id=answer.job_id, created=answer.created)

    return Call(
        path="/octavo.v1.GenerationService/SubmitGeneration",
        request=gateway_pb2.SubmitGenerationRequest(generation=request),
        response=gateway_pb2.SubmitGenerationResponse,
        parse=parse,
        safety=Safety.KEYED if request.idempotency_key else Safety.UNSAFE,
    )


def _job(answer: Message) -> Job:
    assert isinstance(
        answer,
        jobs_pb2.GetJobResponse | jobs_pb2.CancelJobResponse | jobs_pb2.RetryJobResponse | jobs_pb2.WatchJobResponse,
    )
    return parsing.job(answer.job)


def get_job(job_id: str) -> Call[Job]:
    """Read one job."""
    return Call(
        path="/octavo.v1.JobService/GetJob",
        request=build(jobs_pb2.GetJobRequest, _JOB, id=job_id),
        response=jobs_pb2.GetJobResponse,
        parse=_job,
    )


def cancel_job(job_id: str) -> Call[Job]:
    """Ask a job to end. Safe to repeat: an ended job is returned as it is."""
    return Call(
        path="/octavo.v1.JobService/CancelJob",
        request=build(jobs_pb2.CancelJobRequest, _JOB, id=job_id),
        response=jobs_pb2.CancelJobResponse,
        parse=_job,
    )


def retry_job(job_id: str) -> Call[Job]:
    """Queue a copy of an ended job. A second try would queue a second copy."""
    return Call(
        path="/octavo.v1.JobService/RetryJob",
        request=build(jobs_pb2.RetryJobRequest, _JOB, id=job_id),
        response=jobs_pb2.RetryJobResponse,
        parse=_job,
        safety=Safety.UNSAFE,
    )


def watch_job(job_id: str) -> Call[Job]:
    """Stream the job now and after each change until it has ended."""
    return Call(
        path="/octavo.v1.JobService/WatchJob",
        request=build(jobs_pb2.WatchJobRequest, _JOB, id=job_id),
        response=jobs_pb2.WatchJobResponse,
        parse=_job,
    )


def job_events(job_id: str) -> Call[list[JobEvent]]:
    """Read a job's history, oldest first."""

    def parse(answer: Message) -> list[JobEvent]:
        assert isinstance(answer, jobs_pb2.ListJobEventsResponse)
        return [parsing.job_event(event) for event in answer.events]

    return Call(
        path="/octavo.v1.JobService/ListJobEvents",
        request=build(jobs_pb2.ListJobEventsRequest, _JOB, id=job_id),
        response=jobs_pb2.ListJobEventsResponse,
        parse=parse,
    )


def list_jobs(
    *, states: Iterable[JobState | str], model: str, tenant: str, page_size: int, page_token: str
) -> Call[tuple[list[Job], str]]:
    """Read one page of jobs, newest first, and the token of the next page (empty on the last)."""

    def parse(answer: Message) -> tuple[list[Job], str]:
        assert isinstance(answer, jobs_pb2.ListJobsResponse)
        return [parsing.job(job) for job in answer.jobs], answer.next_page_token

    numbers = parsing.state_numbers(states)
    return Call(
        path="/octavo.v1.JobService/ListJobs",
        request=build(
            jobs_pb2.ListJobsRequest,
            page_size=page_size,
            page_token=page_token,
            states=numbers,
            model=model,
            tenant=tenant,
        ),
        response=jobs_pb2.ListJobsResponse,
        parse=parse,
    )


def list_models() -> Call[list[Model]]:
    """Read the served models."""

    def parse(answer: Message) -> list[Model]:
        assert isinstance(answer, gateway_pb2.ListModelsResponse)
        return [parsing.model(model) for model in answer.models]

    return Call(
        path="/octavo.v1.ModelService/ListModels",
        request=gateway_pb2.ListModelsRequest(),
        response=gateway_pb2.ListModelsResponse,
        parse=parse,
    )


def list_workers(*, include_dead: bool) -> Call[list[Worker]]:
    """Read the workers."""

    def parse(answer: Message) -> list[Worker]:
        assert isinstance(answer, gateway_pb2.ListWorkersResponse)
        return [parsing.worker(worker) for worker in answer.workers]

    return Call(
        path="/octavo.v1.FleetService/ListWorkers",
        request=build(gateway_pb2.ListWorkersRequest, include_dead=include_dead),
        response=gateway_pb2.ListWorkersResponse,
        parse=parse,
    )


def worker_records(worker_id: str, after_step: int) -> Call[list[StepRecord]]:
    """Read a worker's record of its recent steps."""

    def parse(answer: Message) -> list[StepRecord]:
        assert isinstance(answer, gateway_pb2.GetWorkerRecordsResponse)
        return [parsing.step_record(record) for record in answer.records]

    return Call(
        path="/octavo.v1.FleetService/GetWorkerRecords",
        request=build(gateway_pb2.GetWorkerRecordsRequest, worker_id=worker_id, after_step=after_step),
        response=gateway_pb2.GetWorkerRecordsResponse,
        parse=parse,
    )
