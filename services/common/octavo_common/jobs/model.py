"""The values of the job table: jobs, their events, and what each reader of the table sees. Pure: no SQL, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from octavo_common.jobs.spec import ModelCard

# Losses without progress between them after which a job fails.
MAX_LOSSES = 3
GENERATION, EDGE_BUILD = "generation", "edge_build"
# Kinds that no scheduler places: a service that is free takes the next one by itself.
PULLED_KINDS = frozenset({EDGE_BUILD})


class JobState(StrEnum):
    """Where a job stands. Every job ends once, in one of the last three."""

    QUEUED = "queued"  # accepted, waits for a worker
    ASSIGNED = "assigned"  # given to a worker that has not taken it yet
    RUNNING = "running"  # a worker computes it
    SUCCEEDED = "succeeded"  # ended with a result
    FAILED = "failed"  # ended with an error
    CANCELLED = "cancelled"  # ended on request

    @property
    def ended(self) -> bool:
        """True for the states that no job leaves."""
        return self in ENDED


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
# States in which a worker holds the job.
HELD = frozenset({JobState.ASSIGNED, JobState.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a gateway writes when it accepts a request."""

    id: UUID
    tenant: str
    model: str
    model_digest: str
    # The kind's own JSON: a GenerationSpec, or a BuildSpec.
    payload: Mapping[str, Any]
    prompt_ids: tuple[int, ...]
    prefix_keys: tuple[str, ...] = ()
    kind: str = GENERATION
    # Empty means the tenant.
    fair_key: str = ""
    cache_salt: str = ""
    priority: int = 0
    # The gateway that streams it, if one does.
    stream_owner: UUID | None = None
    # Time from acceptance to the deadline; None: it may take for ever.
    timeout_s: float | None = None
    traceparent: str = ""
    idempotency_key: str | None = None
    # Digest of the request as the caller sent it; compared when an idempotency key is used again.
    request_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A row of the job table. Lists leave prompt_ids, prefix_keys, emitted_ids, payload and result empty."""

    id: UUID
    kind: str
    tenant: str
    fair_key: str
    cache_salt: str
    model: str
    model_digest: str
    # Of the worker that ran it last; empty before the first.
    numerics_id: str
    # It went on at a worker of another numerics id after tokens had been sent.
    numerics_changed: bool
    priority: int
    state: JobState
    payload: Mapping[str, Any]
    prompt_ids: tuple[int, ...]
    num_prompt_tokens: int
    prefix_keys: tuple[str, ...]
    # The output's beginning that any further attempt continues.
    emitted_ids: tuple[int, ...]
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None
    # Counts the changes of owner.
    fence: int
    worker_id: UUID | None
    stream_owner: UUID | None
    # Losses without progress between them: for the rules, users see all of them.
    losses: int
    total_losses: int
    # Output tokens that are known to exist: by heartbeats and requeues.
    num_tokens: int
    not_before: datetime | None
    deadline: datetime | None
    lease_until: datetime | None
    cancel_requested: bool
    traceparent: str
    idempotency_key: str | None
    request_digest: str
    # False once the retention time is over: prompt and result are gone, figures stay.
    content_kept: bool
    created_at: datetime
    assigned_at: datetime | None
    # When a worker first took it.
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One entry of a job's history."""

    time: datetime
    # The name of a transition: queued, assigned, running, resumed, reaped, released, cancel_requested, adopted, ...
    event: str
    fence: int
    process_id: UUID | None
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How a stream's owner queues its job again, when it stands under the fence."""

    owner: UUID
    fence: int
    # What the stream has sent, and the next worker goes on from.
    emitted_ids: tuple[int, ...] = ()
    # Nothing is placed at the job's worker until its next heartbeat. False when the worker answered (it has lost the
    # job, or holds another prefix); else the job could lose the same dead worker again at once.
    worker_dead: bool = True
    # These go into the job's history: the reason, and how long the first token of the job is known.
    why: str = ""
    first_token_ago_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedJob:
    """What a gateway needs of a job whose stream it owns."""

    id: UUID
    state: JobState
    fence: int
    stream_owner: UUID | None
    worker_id: UUID | None
    # host:port of the worker's gRPC server; empty when it has none or its row is gone.
    worker_address: str
    # The worker's heartbeat is younger than its lease.
    worker_alive: bool
    cancel_requested: bool
    # Only for ended rows.
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """What placement needs of a job that waits. Comes in placing order."""

    id: UUID
    fence: int
    tenant: str
    fair_key: str
    model_digest: str
    # Where its first tokens were made; empty if it has none.
    numerics_id: str
    priority: int
    # It was with a worker, or its stream owner has queued it again.
    resumed: bool
    losses: int
    total_losses: int
    num_prompt_tokens: int
    num_emitted_tokens: int
    # 0 when the payload does not say.
    max_tokens: int
    prefix_keys: tuple[str, ...]
    # Of the request, so that placement shows in its trace; empty if it has none.
    traceparent: str
    age_s: float
    # The tenant's limit on assigned and running jobs (None: none), and how many it has.
    tenant_max_running: int | None
    tenant_num_running: int


class FleetJob(NamedTuple):
    """A job that a worker holds."""

    id: UUID
    fair_key: str
    # 0 when it has made progress since its last loss.
    losses: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWorker:
    """A worker whose heartbeat is fresh."""

    id: UUID
    address: str
    draining: bool
    card: ModelCard
    max_jobs: int
    load: Mapping[str, Any]
    heartbeat_age_s: float
    jobs: tuple[FleetJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A decision of placement; takes effect only while the job is queued under this fence."""

    job_id: UUID
    fence: int
    worker_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What the reaper did to a job."""

    id: UUID
    # queued, cancelled or failed.
    state: JobState
    fence: int
    losses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A job that a worker has taken."""

    job: Job
    # Seconds to the deadline by the database's clock; None: no deadline.
    deadline_in_s: float | None
    # Seconds since acceptance.
    age_s: float
    # Seconds since it was queued last: by its acceptance, or when it came back from a worker.
    wait_s: float
    # From acceptance to when a worker first took it; None: that is now.
    earlier_start_s: float | None = None
    # From acceptance to the first of its emitted_ids; None: there is none, or nobody knows.
    earlier_token_s: float | None = None


class Held(NamedTuple):
    """What a worker says in its heartbeat about a job it holds."""

    job_id: UUID
    fence: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """What the table says about the jobs that a worker holds."""

    # Under another fence or ended: drop everything.
    lost: frozenset[UUID]
    # Somebody asked to end them.
    cancelled: frozenset[UUID]
    # False: the process has no row any more and must register again.
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProcess:
    """What a process says about itself when it starts."""

    id: UUID
    # gateway, scheduler, worker or edge_builder.
    role: str
    # host:port of its gRPC server.
    address: str = ""
    http_address: str = ""
    metrics_address: str = ""
    host: str = ""
    pid: int = 0
    lease_s: float = 15.0
    card: ModelCard | None = None
    # {max_jobs}; of an edge builder {store, targets}
    capacity: Mapping[str, Any] = field(default_factory=lambda: {})
    # {num_running, num_waiting, num_free_blocks, num_total_blocks, prefix_keys}; of an edge builder {build}
    load: Mapping[str, Any] = field(default_factory=lambda: {})
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A row of `processes`, with its age by the database's clock."""

    id: UUID
    role: str
    address: str
    http_address: str
    metrics_address: str
    host: str
    pid: int
    lease_s: float
    draining: bool
    card: ModelCard | None
    capacity: Mapping[str, Any]
    load: Mapping[str, Any]
    started_at: datetime
    heartbeat_age_s: float
    # The heartbeat is younger than the lease.
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """How much of the platform a tenant may take; None: no limit."""

    max_running: int | None = None
    max_queued: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a key belongs to and what it may do."""

    tenant: str
    # user: its tenant's jobs; admin: all.
    scope: str
    limits: TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is listed: never the key itself."""

    # First 12 hex digits of the sha256; names the key in `revoke`.
    id: str
    tenant: str
    scope: str
    name: str
    created_at: datetime
    revoked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What there is to do for the scheduler that leads, apart from placing."""

    # There are queued jobs that are placed.
    queued: bool
    # Queued jobs whose deadline has passed.
    late: bool
    # Jobs whose lease is over, and whose stream nobody alive owns.
    lost: bool
    # Until the first lease is over, negative if it is; None: no job has one. Of jobs that wait `queued` tells.
    next_s: float | None
    # Since the database server started, by its own clock.
    server_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How much a pruning pass has removed."""

    num_contents: int
    num_jobs: int
    num_processes: int
