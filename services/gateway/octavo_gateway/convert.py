"""Protobuf messages to values and back. What callers ask for is read by `convert_request`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from octavo.v1 import common_pb2, gateway_pb2, jobs_pb2, pool_pb2, worker_pb2
from octavo_common.errors import InvalidArgument, OctavoError, Status
from octavo_common.jobs.model import GENERATION, Job, JobEvent, JobState, ProcessRecord
from octavo_common.jobs.spec import (
    ChoiceResult,
    FinishReason,
    GenerationResult,
    JobFailure,
    TokenLogprob,
    UsageRecord,
)
from octavo_common.prefix import tokens_digest
from octavo_gateway.convert_request import seconds
from octavo_gateway.values import AcceptedJob, ChoiceEnd, Ended, Finish, ModelInfo, TokenPiece, WorkerMessage

_FINISH_NAMES: dict[common_pb2.FinishReason, FinishReason] = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
}
_FINISH_NUMBERS = {name: number for number, name in _FINISH_NAMES.items()}
_STATE_NUMBERS = {state: getattr(jobs_pb2, f"JOB_STATE_{state.name}") for state in JobState}
_STATES = {number: state for state, number in _STATE_NUMBERS.items()}
_STATUS_BY_CODE = {status.grpc_code: status for status in Status}


# --- what callers send


def job_states(values: Sequence[int]) -> list[JobState]:
    """States of a filter. Raises InvalidArgument for one that there is not."""
    unknown = [value for value in values if value not in _STATES]
    if unknown:
        raise InvalidArgument(f"there is no job state {unknown[0]}", param="states")
    return [_STATES[value] for value in values]


def uuid_or_none(text: str) -> UUID | None:
    """A UUID, or None for any other text."""
    try:
        return UUID(text)
    except ValueError:
        return None


# --- what workers get and send


def stream_request(job_id: UUID, fence: int, prefix: Sequence[Sequence[int]]) -> worker_pb2.StreamRequest:
    """Ask for a job's tokens behind those of the prefix of each answer."""
    first, *others = prefix
    return worker_pb2.StreamRequest(
        job_id=str(job_id),
        fence=fence,
        first_token=len(first),
        prefix_digest=tokens_digest(first),
        others=[worker_pb2.ChoicePosition(first_token=len(i), prefix_digest=tokens_digest(i)) for i in others],
    )


def records_request(after_step: int) -> worker_pb2.GetRecordsRequest:
    """Ask for the records of the steps after one."""
    return worker_pb2.GetRecordsRequest(after_step=after_step)


def pool_request() -> pool_pb2.GetPoolRequest:
    """Ask who holds which block."""
    return pool_pb2.GetPoolRequest()


def worker_message(message: worker_pb2.StreamResponse) -> WorkerMessage:
    """One message of a worker's stream."""
    piece = TokenPiece(
        choice=message.choice,
        first_token=message.first_token,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=tuple(map(_token_logprob, message.logprobs)),
        prompt_logprobs=tuple(map(_token_logprob, message.prompt_logprobs)),
    )
    return WorkerMessage(piece=piece, end=_end(message.end) if message.HasField("end") else None)


def _end(end: worker_pb2.StreamEnd) -> Finish | Ended:
    if end.HasField("failure"):
        status = _STATUS_BY_CODE.get(end.failure.grpc_code, Status.INTERNAL)
        failure = JobFailure(
            code=end.failure.code,
            message=end.failure.message,
            hint=end.failure.hint,
            status=status.name,
            param=end.failure.param,
        )
        return Ended(failure=failure)
    if end.cancelled:
        return Ended(failure=None)
    return Finish(
        finish_reason=_FINISH_NAMES.get(end.finish_reason, "stop"),
        usage=_usage_record(end.usage),
        choices=tuple(
            ChoiceEnd(
                finish_reason=_FINISH_NAMES.get(choice.finish_reason, "stop"),
                score=choice.score if choice.HasField("score") else None,
            )
            for choice in end.choices
        ),
    )


def finish_of(result: GenerationResult) -> Finish:
    """The end of a stream whose result is known."""
    ends = tuple(ChoiceEnd(finish_reason=c.finish_reason, score=c.score) for c in result.choices)
    several = len(ends) > 1 or result.score is not None
    return Finish(finish_reason=result.finish_reason, usage=result.usage, choices=ends if several else ())


def _token_logprob(message: common_pb2.TokenLogprobs) -> TokenLogprob:
    return TokenLogprob(
        message.logprob if message.HasField("logprob") else None,
        message.rank,
        tuple(zip(message.top_token_ids, message.top_logprobs, strict=False)),
        message.text_offset,
    )


def _usage_record(usage: common_pb2.Usage) -> UsageRecord:
    return UsageRecord(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        num_preemptions=usage.num_preemptions,
        num_losses=usage.num_losses,
        numerics_changed=usage.numerics_changed,
        seed=usage.seed,
        queue_s=seconds(usage.queue_time) if usage.HasField("queue_time") else None,
        time_to_first_token_s=seconds(usage.time_to_first_token) if usage.HasField("time_to_first_token") else None,
        total_s=seconds(usage.total_time) if usage.HasField("total_time") else None,
    )


def failure_error(failure: JobFailure) -> OctavoError:
    """The error that a failed job raises."""
    status = Status[failure.status] if failure.status in Status.__members__ else Status.INTERNAL
    param = failure.param or None
    return OctavoError(failure.message, code=failure.code, status=status, hint=failure.hint, param=param)


# --- what callers get


def accepted_event(accepted: AcceptedJob) -> gateway_pb2.GenerationEvent:
    """The first event of a stream."""
    message = gateway_pb2.Accepted(
        job_id=str(accepted.job_id),
        model=accepted.model,
        num_prompt_tokens=accepted.num_prompt_tokens,
        created=accepted.created,
        create_time=_timestamp(accepted.create_time),
        num_choices=accepted.num_choices,
    )
    return gateway_pb2.GenerationEvent(accepted=message)


def stream_event(event: TokenPiece | Finish) -> gateway_pb2.GenerationEvent:
    """A further event of a stream."""
    if isinstance(event, TokenPiece):
        chunk = gateway_pb2.TokenChunk(
            choice=event.choice,
            first_token=event.first_token,
            token_ids=event.token_ids,
            text=event.text,
            logprobs=map(_token_logprobs, event.logprobs),
            prompt_logprobs=map(_token_logprobs, event.prompt_logprobs),
        )
        return gateway_pb2.GenerationEvent(tokens=chunk)
    finished = gateway_pb2.Finished(
        finish_reason=_FINISH_NUMBERS[event.finish_reason],
        usage=usage(event.usage),
        choices=[
            common_pb2.ChoiceEnd(finish_reason=_FINISH_NUMBERS[choice.finish_reason], score=choice.score)
            for choice in event.choices
        ],
    )
    return gateway_pb2.GenerationEvent(finished=finished)


def usage(record: UsageRecord) -> common_pb2.Usage:
    """Usage as a message."""
    return common_pb2.Usage(
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        num_preemptions=record.num_preemptions,
        num_losses=record.num_losses,
        numerics_changed=record.numerics_changed,
        seed=record.seed,
        queue_time=_duration(record.queue_s),
        time_to_first_token=_duration(record.time_to_first_token_s),
        total_time=_duration(record.total_s),
    )


def job(value: Job) -> jobs_pb2.Job:
    """A job as a message."""
    message = jobs_pb2.Job(
        id=str(value.id),
        kind=value.kind,
        tenant=value.tenant,
        model=value.model,
        model_digest=value.model_digest,
        state=_STATE_NUMBERS[value.state],
        priority=value.priority,
        fence=value.fence,
        worker_id=str(value.worker_id) if value.worker_id else "",
        num_losses=value.total_losses,
        cancel_requested=value.cancel_requested,
        create_time=_timestamp(value.created_at),
        start_time=_timestamp(value.started_at),
        end_time=_timestamp(value.ended_at),
        deadline=_timestamp(value.deadline),
        num_prompt_tokens=value.num_prompt_tokens,
        trace_id=_trace_id(value.traceparent),
        numerics_id=value.numerics_id,
    )
    if value.result is not None and value.kind == GENERATION:
        message.result.CopyFrom(_result(GenerationResult.from_json(dict(value.result))))
    if value.error is not None:
        message.failure.CopyFrom(_failure(JobFailure.from_json(dict(value.error))))
    elif value.state is JobState.CANCELLED:
        message.failure.CopyFrom(
            common_pb2.Failure(code="CANCELLED", message="the job was cancelled", grpc_code=Status.CANCELLED.grpc_code)
        )
    return message


def job_event(value: JobEvent) -> jobs_pb2.JobEvent:
    """An entry of a job's history as a message."""
    return jobs_pb2.JobEvent(
        time=_timestamp(value.time),
        event=value.event,
        fence=value.fence,
        process_id=str(value.process_id) if value.process_id else "",
        details={key: str(text) for key, text in value.details.items()},
    )


def model(value: ModelInfo) -> gateway_pb2.Model:
    """A model as a message."""
    created = Timestamp()
    created.FromNanoseconds(round(value.created_s * 1e9))
    return gateway_pb2.Model(
        name=value.name,
        digest=value.digest,
        family=value.family,
        max_sequence_tokens=value.max_sequence_tokens,
        numerics_ids=value.numerics_ids,
        num_workers=value.num_workers,
        create_time=created,
    )


def worker(value: ProcessRecord) -> gateway_pb2.Worker:
    """A worker as a message."""
    load, card = value.load, value.card
    return gateway_pb2.Worker(
        id=str(value.id),
        pid=value.pid,
        host=value.host,
        address=value.address,
        role="mixed",
        model=card.name if card else "",
        numerics_id=card.numerics_id if card else "",
        num_running=int(load.get("num_running", 0)),
        num_waiting=int(load.get("num_waiting", 0)),
        num_free_blocks=int(load.get("num_free_blocks", 0)),
        num_total_blocks=int(load.get("num_total_blocks", card.num_blocks if card else 0)),
        max_jobs=int(value.capacity.get("max_jobs", 0)),
        heartbeat_age=_duration(value.heartbeat_age_s),
        draining=value.draining,
        alive=value.alive,
        metrics_address=value.metrics_address,
        block_size=card.block_size if card else 0,
    )


def _result(value: GenerationResult) -> jobs_pb2.GenerationResult:
    return jobs_pb2.GenerationResult(
        text=value.text,
        token_ids=value.token_ids,
        finish_reason=_FINISH_NUMBERS[value.finish_reason],
        usage=usage(value.usage),
        logprobs=map(_token_logprobs, value.logprobs),
        prompt_logprobs=map(_token_logprobs, value.prompt_logprobs),
        choices=map(_choice, value.choices) if value.others or value.score is not None else (),
    )


def _choice(value: ChoiceResult) -> jobs_pb2.Choice:
    return jobs_pb2.Choice(
        text=value.text,
        token_ids=value.token_ids,
        finish_reason=_FINISH_NUMBERS[value.finish_reason],
        logprobs=map(_token_logprobs, value.logprobs),
        score=value.score,
    )


def _token_logprobs(told: TokenLogprob) -> common_pb2.TokenLogprobs:
    return common_pb2.TokenLogprobs(
        logprob=told.logprob,
        rank=told.rank,
        top_token_ids=[token for token, _ in told.top],
        top_logprobs=[logprob for _, logprob in told.top],
        text_offset=told.text_offset,
    )


def _failure(value: JobFailure) -> common_pb2.Failure:
    status = Status[value.status] if value.status in Status.__members__ else Status.INTERNAL
    return common_pb2.Failure(
        code=value.code, message=value.message, hint=value.hint, grpc_code=status.grpc_code, param=value.param
    )


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 else ""


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9) if math.isfinite(seconds) else 0)
    return duration


def _timestamp(time: datetime | None) -> Timestamp | None:
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time.astimezone(UTC).replace(tzinfo=None))
    return stamp
