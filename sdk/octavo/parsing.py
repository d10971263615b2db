"""Turns messages of octavo.v1 into values. Pure; the only reader of response messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from octavo.errors import InvalidArgumentError
from octavo.v1 import common_pb2, gateway_pb2, jobs_pb2, worker_pb2
from octavo.values import (
    Choice,
    Chunk,
    Failure,
    FinishReason,
    GenerationResult,
    Job,
    JobEvent,
    JobState,
    Model,
    StepRecord,
    TokenLogprobs,
    Usage,
    Worker,
)

_STATES: dict[int, JobState] = {
    jobs_pb2.JOB_STATE_QUEUED: JobState.QUEUED,
    jobs_pb2.JOB_STATE_ASSIGNED: JobState.ASSIGNED,
    jobs_pb2.JOB_STATE_RUNNING: JobState.RUNNING,
    jobs_pb2.JOB_STATE_SUCCEEDED: JobState.SUCCEEDED,
    jobs_pb2.JOB_STATE_FAILED: JobState.FAILED,
    jobs_pb2.JOB_STATE_CANCELLED: JobState.CANCELLED,
}
_STATE_NUMBERS: dict[JobState, int] = {state: number for number, state in _STATES.items()}
_FINISH: dict[int, FinishReason] = {
    common_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def _time(
    message: jobs_pb2.Job | jobs_pb2.JobEvent | gateway_pb2.Model | worker_pb2.StepRecord, name: str
) -> datetime | None:
    if not message.HasField(name):
        return None
    stamp: Timestamp = getattr(message, name)
    return stamp.ToDatetime(tzinfo=UTC)


def finish_reason(number: int) -> FinishReason:
    """Why a generation ended; UNKNOWN for reasons that are newer than this SDK."""
    return _FINISH.get(number, FinishReason.UNKNOWN)


def usage(message: common_pb2.Usage) -> Usage:
    """What a request used."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        num_preemptions=message.num_preemptions,
        num_losses=message.num_losses,
        numerics_changed=message.numerics_changed,
        seed=message.seed,
        queue_s=seconds(message.queue_time) if message.HasField("queue_time") else None,
        time_to_first_token_s=(
            seconds(message.time_to_first_token) if message.HasField("time_to_first_token") else None
        ),
        total_s=seconds(message.total_time) if message.HasField("total_time") else None,
    )


def chunk(message: gateway_pb2.TokenChunk) -> Chunk:
    """Tokens of one step."""
    return Chunk(
        choice=message.choice,
        first_token=message.first_token,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=logprobs(message.logprobs),
        prompt_logprobs=logprobs(message.prompt_logprobs),
    )


def logprobs(messages: Iterable[common_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    """What is told of tokens."""
    return tuple(
        TokenLogprobs(
            logprob=message.logprob if message.HasField("logprob") else None,
            rank=message.rank,
            top=tuple(zip(message.top_token_ids, message.top_logprobs, strict=False)),
            text_offset=message.text_offset,
        )
        for message in messages
    )


def score(message: common_pb2.ChoiceEnd | jobs_pb2.Choice) -> float | None:
    """What a ranked answer is in order of."""
    return message.score if message.HasField("score") else None


def result(message: jobs_pb2.GenerationResult) -> GenerationResult:
    """What a generation produced."""
    choices = tuple(
        Choice(
            text=choice.text,
            token_ids=tuple(choice.token_ids),
            finish_reason=finish_reason(choice.finish_reason),
            logprobs=logprobs(choice.logprobs),
            score=score(choice),
        )
        for choice in message.choices
    )
    first = Choice(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=finish_reason(message.finish_reason),
        logprobs=logprobs(message.logprobs),
    )
    return result_of(choices or (first,), usage(message.usage), logprobs(message.prompt_logprobs))


def result_of(
    choices: Sequence[Choice], used: Usage, prompt_logprobs: tuple[TokenLogprobs, ...] = ()
) -> GenerationResult:
    """A result out of its answers."""
    first = choices[0]
    return GenerationResult(
        text=first.text,
        token_ids=first.token_ids,
        finish_reason=first.finish_reason,
        usage=used,
        logprobs=first.logprobs,
        prompt_logprobs=prompt_logprobs,
        choices=tuple(choices),
    )


def failure(message: common_pb2.Failure) -> Failure:
    """Why a job did not succeed."""
    return Failure(
        code=message.code,
        message=message.message,
        hint=message.hint,
        grpc_code=message.grpc_code,
        param=message.param,
    )


def job(message: jobs_pb2.Job) -> Job:
    """One job. A state that is newer than this SDK counts as running: it has not ended."""
    return Job(
        id=message.id,
        kind=message.kind,
        tenant=message.tenant,
        model=message.model,
        model_digest=message.model_digest,
        state=_STATES.get(message.state, JobState.RUNNING),
        priority=message.priority,
        fence=message.fence,
        worker_id=message.worker_id,
        num_losses=message.num_losses,
        cancel_requested=message.cancel_requested,
        created_at=_time(message, "create_time"),
        started_at=_time(message, "start_time"),
        ended_at=_time(message, "end_time"),
        deadline=_time(message, "deadline"),
        num_prompt_tokens=message.num_prompt_tokens,
        result=result(message.result) if message.HasField("result") else None,
        failure=failure(message.failure) if message.HasField("failure") else None,
        trace_id=message.trace_id,
        numerics_id=message.numerics_id,
    )


def job_event(message: jobs_pb2.JobEvent) -> JobEvent:
    """One entry of a job's history."""
    return JobEvent(
        time=_time(message, "time"),
        event=message.event,
        fence=message.fence,
        process_id=message.process_id,
        details=dict(message.details),
    )


def model(message: gateway_pb2.Model) -> Model:
    """One served model."""
    return Model(
        name=message.name,
        digest=message.digest,
        family=message.family,
        max_sequence_tokens=message.max_sequence_tokens,
        numerics_ids=tuple(message.numerics_ids),
        num_workers=message.num_workers,
        created_at=_time(message, "create_time"),
    )


def worker(message: gateway_pb2.Worker) -> Worker:
    """One worker."""
    return Worker(
        id=message.id,
        pid=message.pid,
        host=message.host,
        address=message.address,
        role=message.role,
        model=message.model,
        numerics_id=message.numerics_id,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_free_blocks=message.num_free_blocks,
        num_total_blocks=message.num_total_blocks,
        block_size=message.block_size,
        max_jobs=message.max_jobs,
        heartbeat_age_s=seconds(message.heartbeat_age),
        draining=message.draining,
        alive=message.alive,
        metrics_address=message.metrics_address,
    )


def step_record(message: worker_pb2.StepRecord) -> StepRecord:
    """One step of an engine."""
    return StepRecord(
        step=message.step,
        time=_time(message, "time"),
        duration_ms=message.duration_ms,
        num_decode_tokens=message.num_decode_tokens,
        num_prompt_tokens=message.num_prompt_tokens,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_preempted=message.num_preempted,
        num_free_blocks=message.num_free_blocks,
        num_cached_blocks=message.num_cached_blocks,
        num_used_blocks=message.num_used_blocks,
        num_rows=message.num_rows,
        num_swapped=message.num_swapped,
        num_prefix_asked_tokens=message.num_prefix_asked_tokens,
        num_prefix_found_tokens=message.num_prefix_found_tokens,
    )


def state_numbers(states: Iterable[JobState | str]) -> list[int]:
    """States as messages have them. Raises InvalidArgumentError for what is none."""
    try:
        return [_STATE_NUMBERS[JobState(state)] for state in states]
    except ValueError as error:
        raise InvalidArgumentError(str(error), hint=f"the states are {', '.join(JobState)}", param="states") from error
