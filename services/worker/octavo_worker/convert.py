"""Values to messages. The only module of the worker that makes protobuf messages; they stop here."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from octavo.v1 import common_pb2, pool_pb2, worker_pb2
from octavo_common.errors import Status
from octavo_common.jobs.spec import JobFailure, TokenLogprob, UsageRecord
from octavo_worker.joblog import End, Piece
from octavo_worker.poolview import PoolView, SequenceView
from octavo_worker.records import StepRecord

_FINISH = {"stop": common_pb2.FINISH_REASON_STOP, "length": common_pb2.FINISH_REASON_LENGTH}


def stream_response(piece: Piece, end: End | None = None) -> worker_pb2.StreamResponse:
    """One message of a stream; the last one has the end."""
    message = worker_pb2.StreamResponse(
        choice=piece.choice, first_token=piece.first_token, token_ids=piece.token_ids, text=piece.text
    )
    if piece.logprobs:
        message.logprobs.extend(map(token_logprobs, piece.logprobs))
    if piece.prompt_logprobs:
        message.prompt_logprobs.extend(map(token_logprobs, piece.prompt_logprobs))
    if end is not None:
        message.end.CopyFrom(stream_end(end))
    return message


def stream_end(end: End) -> worker_pb2.StreamEnd:
    """How the job ended."""
    result = end.result
    if result is not None:
        message = worker_pb2.StreamEnd(finish_reason=_FINISH[result.finish_reason], usage=usage(result.usage))
        if result.others or result.score is not None:
            message.choices.extend(
                common_pb2.ChoiceEnd(finish_reason=_FINISH[choice.finish_reason], score=choice.score)
                for choice in result.choices
            )
        return message
    if end.failure is not None:
        return worker_pb2.StreamEnd(failure=failure(end.failure))
    return worker_pb2.StreamEnd(cancelled=True)


def token_logprobs(told: TokenLogprob) -> common_pb2.TokenLogprobs:
    """What is told of a token."""
    return common_pb2.TokenLogprobs(
        logprob=told.logprob,
        rank=told.rank,
        top_token_ids=[token for token, _ in told.top],
        top_logprobs=[logprob for _, logprob in told.top],
        text_offset=told.text_offset,
    )


def usage(record: UsageRecord) -> common_pb2.Usage:
    """The usage of a result."""
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


def failure(failed: JobFailure) -> common_pb2.Failure:
    """Why the job failed, with the number of its status."""
    code = Status[failed.status].grpc_code
    return common_pb2.Failure(
        code=failed.code, message=failed.message, hint=failed.hint, grpc_code=code, param=failed.param
    )


def step_record(record: StepRecord) -> worker_pb2.StepRecord:
    """One step of the engine."""
    stats, time = record.stats, Timestamp()
    time.FromNanoseconds(round(record.time_s * 1e9))
    return worker_pb2.StepRecord(
        step=stats.step,
        time=time,
        duration_ms=record.duration_s * 1000,
        num_decode_tokens=stats.num_decode_tokens,
        num_prompt_tokens=stats.num_prompt_tokens,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        num_preempted=stats.num_preempted,
        num_free_blocks=stats.num_free_blocks,
        num_cached_blocks=stats.num_cached_blocks,
        num_used_blocks=stats.num_used_blocks,
        num_rows=stats.num_rows,
        num_swapped=stats.num_swapped,
        num_prefix_asked_tokens=stats.num_asked_tokens,
        num_prefix_found_tokens=stats.num_found_tokens,
    )


def pool(view: PoolView) -> pool_pb2.Pool:
    """The pool and who holds its blocks."""
    snapshot, num_blocks = view.snapshot, len(view.snapshot.refs)
    return pool_pb2.Pool(
        step=snapshot.step,
        num_blocks=num_blocks,
        block_size=snapshot.block_size,
        num_free_blocks=num_blocks - view.num_used - view.num_cached,
        num_cached_blocks=view.num_cached,
        num_used_blocks=view.num_used,
        num_shared_blocks=view.num_shared,
        num_unused_slots=view.num_unused_slots,
        blocks_per_cell=view.blocks_per_cell,
        cell_used=[cell.num_used for cell in view.cells],
        cell_cached=[cell.num_cached for cell in view.cells],
        cell_shared=[cell.num_shared for cell in view.cells],
        cell_owner=[cell.owner for cell in view.cells],
        sequences=[_pool_sequence(sequence) for sequence in view.sequences],
        num_sequences_left_out=view.num_sequences_left_out,
        num_host_blocks=snapshot.num_host_slots,
        num_free_host_blocks=snapshot.num_free_host_slots,
    )


def _pool_sequence(sequence: SequenceView) -> pool_pb2.PoolSequence:
    holder = sequence.holder
    return pool_pb2.PoolSequence(
        # The engine's name of it is that of the job with its fence.
        job_id=holder.id.request.split(":")[0],
        choice=holder.id.choice,
        phase=holder.phase,
        num_tokens=holder.num_tokens,
        num_prompt_tokens=holder.num_prompt_tokens,
        num_computed_tokens=holder.num_computed,
        num_blocks=len(holder.blocks),
        num_shared_blocks=sequence.num_shared_blocks,
        blocks=sequence.blocks,
        num_host_blocks=holder.num_host_blocks,
    )


def _duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
