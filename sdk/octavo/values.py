"""What the SDK returns: plain frozen values. Knows no protobuf and no gRPC; durations are seconds, times are UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class JobState(StrEnum):
    """Where a job stands. Every job ends once, in one of the last three."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True when the job will not change any more."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class FinishReason(StrEnum):
    """Why a generation ended well."""

    STOP = "stop"
    LENGTH = "length"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a request used. Times count from its acceptance; None: nobody knows, because a process was lost with it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_preemptions: int = 0
    num_losses: int = 0
    numerics_changed: bool = False
    seed: int = 0
    queue_s: float | None = None
    time_to_first_token_s: float | None = None
    total_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """What is told of one token beside its id.

    ``logprob`` is None where nobody knows it: of the first token of a prompt, and in the result of a job that moved, of
    tokens that another worker made (its stream has told them). -9999 stands for a token that could not come. ``rank`` 1
    is the likeliest token; ``top`` has as many of these as were asked for, with their own. ``text_offset`` is the
    character of the text at which the token's own begins.
    """

    logprob: float | None
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()
    text_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the answers to a request. ``score`` is what ranked answers (beams, best_of) are in order of."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] = ()
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """What a generation produced. Text, tokens and the like are those of the first of ``choices``."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] = ()
    # One for each token of the prompt, when they were asked for.
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    # All answers, best first where they are ranked; at least one.
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens that became certain in one step; ``first_token`` is the index of the first. The text may be empty.

    ``choice`` says which of several answers they belong to. ``logprobs`` has one for each token when they were asked
    for, ``prompt_logprobs``, in the first chunk of an answer, one for each token of the prompt.
    """

    first_token: int
    token_ids: tuple[int, ...]
    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job did not succeed."""

    code: str
    message: str
    hint: str = ""
    grpc_code: int = 0
    # Field of the request that is at fault, if one is.
    param: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One accepted piece of work, as the job table has it."""

    id: str
    kind: str
    tenant: str
    model: str
    model_digest: str
    state: JobState
    priority: int
    fence: int
    worker_id: str
    num_losses: int
    cancel_requested: bool
    created_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    deadline: datetime | None
    num_prompt_tokens: int
    result: GenerationResult | None
    failure: Failure | None
    trace_id: str
    numerics_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One entry of a job's history. ``fence`` is the one after the event."""

    time: datetime | None
    event: str
    fence: int
    process_id: str
    details: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandle:
    """A submitted job. ``created`` is False when the idempotency key named a job that exists."""

    id: str
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that can be asked for. ``max_sequence_tokens`` bounds prompt plus output."""

    name: str
    digest: str
    family: str
    max_sequence_tokens: int
    numerics_ids: tuple[str, ...]
    num_workers: int
    created_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker as its last heartbeat described it."""

    id: str
    pid: int
    host: str
    address: str
    role: str
    model: str
    numerics_id: str
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_total_blocks: int
    block_size: int
    max_jobs: int
    heartbeat_age_s: float
    draining: bool
    alive: bool
    metrics_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of a worker's engine."""

    step: int
    time: datetime | None
    duration_ms: float
    num_decode_tokens: int
    num_prompt_tokens: int
    num_running: int
    num_waiting: int
    num_preempted: int
    num_free_blocks: int
    num_cached_blocks: int
    num_used_blocks: int
    num_rows: int = 0
    # Of the preempted, those that went to host memory; the others are computed again.
    num_swapped: int = 0
    # Of sequences that began in the step: tokens that could have been in the prefix cache, and those that were.
    num_prefix_asked_tokens: int = 0
    num_prefix_found_tokens: int = 0
