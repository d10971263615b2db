"""The schema as SQLAlchemy tables; a test holds the migrations to it. Knows no rules about how rows change."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData()


def _text(name: str, default: str = "") -> Column[str]:
    return Column(name, Text, nullable=False, server_default=text(f"'{default}'"))


def _count(name: str, *, big: bool = False) -> Column[int]:
    return Column(name, BigInteger if big else Integer, nullable=False, server_default=text("0"))


def _time(name: str, *, now: bool = False) -> Column[object]:
    time_type = DateTime(timezone=True)
    return Column(name, time_type, nullable=False, server_default=text("now()")) if now else Column(name, time_type)


def _flag(name: str, *, default: bool = False) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=text("true" if default else "false"))


jobs = Table(
    "jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    _text("kind", "generation"),
    Column("tenant", Text, nullable=False),
    Column("fair_key", Text, nullable=False),
    _text("cache_salt"),
    Column("model", Text, nullable=False),
    Column("model_digest", Text, nullable=False),
    _text("numerics_id"),
    _flag("numerics_changed"),
    _count("priority"),
    _text("state", "queued"),
    Column("payload", JSONB(none_as_null=True), nullable=False),
    Column("prompt_ids", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    _count("num_prompt_tokens"),
    Column("prefix_keys", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("emitted_ids", ARRAY(Integer), nullable=False, server_default=text("'{}'")),
    Column("result", JSONB(none_as_null=True)),
    Column("error", JSONB(none_as_null=True)),
    _count("fence", big=True),
    Column("worker_id", Uuid),
    Column("stream_owner", Uuid),
    _count("losses"),
    _count("total_losses"),
    _count("num_tokens"),
    # Tokens that existed at the last loss: what the next attempt must exceed to have made progress.
    _count("loss_tokens"),
    _time("not_before"),
    _time("deadline"),
    _time("lease_until"),
    _flag("cancel_requested"),
    _text("traceparent"),
    Column("idempotency_key", Text),
    _text("request_digest"),
    _flag("content_kept", default=True),
    _time("created_at", now=True),
    _time("assigned_at"),
    _time("started_at"),
    _time("ended_at"),
    CheckConstraint("state in ('queued','assigned','running','succeeded','failed','cancelled')", name="jobs_state"),
    CheckConstraint("(state in ('assigned','running')) <= (worker_id is not null)", name="jobs_held_by_somebody"),
    CheckConstraint("(state in ('succeeded','failed','cancelled')) = (ended_at is not null)", name="jobs_end_time"),
    # Room on the page for the next versions of a row, and vacuum that keeps up with churn.
    postgresql_with={"fillfactor": "80", "autovacuum_vacuum_scale_factor": "0.01", "autovacuum_vacuum_cost_delay": "0"},
)

# lease_until and num_tokens are in no index, so that heartbeats stay cheap (heap-only updates).
Index(
    "jobs_queue",
    jobs.c.model_digest,
    text("(fence > 0) DESC"),
    jobs.c.priority.desc(),
    jobs.c.created_at,
    jobs.c.id,
    postgresql_where=text("state = 'queued'"),
)
# What services take by themselves.
Index(
    "jobs_pulled",
    jobs.c.kind,
    jobs.c.priority.desc(),
    jobs.c.created_at,
    jobs.c.id,
    postgresql_where=text("state = 'queued' and kind <> 'generation'"),
)
Index("jobs_queue_deadline", jobs.c.deadline, postgresql_where=text("state = 'queued' and deadline is not null"))
Index("jobs_held", jobs.c.worker_id, postgresql_where=text("state in ('assigned','running')"))
Index("jobs_streams", jobs.c.stream_owner, postgresql_where=text("ended_at is null and stream_owner is not null"))
Index("jobs_open_by_tenant", jobs.c.tenant, jobs.c.state, postgresql_where=text("ended_at is null"))
Index("jobs_by_tenant", jobs.c.tenant, jobs.c.id.desc())
Index(
    "jobs_idempotency",
    jobs.c.tenant,
    jobs.c.idempotency_key,
    unique=True,
    postgresql_where=text("idempotency_key is not null"),
)
Index("jobs_contents", jobs.c.ended_at, jobs.c.id, postgresql_where=text("ended_at is not null and content_kept"))
Index("jobs_ended", jobs.c.ended_at, jobs.c.id, postgresql_where=text("ended_at is not null"))

# No foreign key: only pruning deletes jobs, and it deletes their events in the same statement.
job_events = Table(
    "job_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("job_id", Uuid, nullable=False),
    # clock_timestamp: events of one transaction keep their order.
    Column("time", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("event", Text, nullable=False),
    _count("fence", big=True),
    Column("process_id", Uuid),
    Column("details", JSONB(none_as_null=True), nullable=False, server_default=text("'{}'")),
)
Index("job_events_by_job", job_events.c.job_id, job_events.c.id)

processes = Table(
    "processes",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("role", Text, nullable=False),
    _text("address"),
    _text("http_address"),
    _text("metrics_address"),
    _text("host"),
    _count("pid"),
    _time("started_at", now=True),
    _time("heartbeat_at", now=True),
    Column("lease_s", Double, nullable=False),
    _flag("draining"),
    # Somebody found it dead; its next heartbeat proves the opposite.
    _time("suspected_at"),
    Column("card", JSONB(none_as_null=True)),
    Column("capacity", JSONB(none_as_null=True), nullable=False, server_default=text("'{}'")),
    Column("load", JSONB(none_as_null=True), nullable=False, server_default=text("'{}'")),
    CheckConstraint("role in ('gateway','scheduler','worker','edge_builder')", name="processes_role"),
    postgresql_with={"fillfactor": "50"},
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", Text, primary_key=True),
    Column("max_running", Integer),
    Column("max_queued", Integer),
    _time("created_at", now=True),
)

api_keys = Table(
    "api_keys",
    metadata,
    # sha256 in hex of the key.
    Column("hash", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("scope", Text, nullable=False),
    _text("name"),
    _time("created_at", now=True),
    _time("revoked_at"),
    CheckConstraint("scope in ('user','admin')", name="api_keys_scope"),
)

artifacts = Table(
    "artifacts",
    metadata,
    # sha256 in hex of the data.
    Column("digest", Text, primary_key=True),
    Column("media_type", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    _time("created_at", now=True),
)
