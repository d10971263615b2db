"""The job table, its history, processes, tenants, keys and artifacts.

Revision ID: 0001
Revises: nothing
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = ("jobs", "job_events", "processes", "tenants", "api_keys", "artifacts")
_STATEMENTS = (
    """
    CREATE TABLE jobs (
        id UUID NOT NULL,
        kind TEXT DEFAULT 'generation' NOT NULL,
        tenant TEXT NOT NULL,
        fair_key TEXT NOT NULL,
        cache_salt TEXT DEFAULT '' NOT NULL,
        model TEXT NOT NULL,
        model_digest TEXT NOT NULL,
        numerics_id TEXT DEFAULT '' NOT NULL,
        numerics_changed BOOLEAN DEFAULT false NOT NULL,
        priority INTEGER DEFAULT 0 NOT NULL,
        state TEXT DEFAULT 'queued' NOT NULL,
        payload JSONB NOT NULL,
        prompt_ids INTEGER[] DEFAULT '{}' NOT NULL,
        num_prompt_tokens INTEGER DEFAULT 0 NOT NULL,
        prefix_keys TEXT[] DEFAULT '{}' NOT NULL,
        emitted_ids INTEGER[] DEFAULT '{}' NOT NULL,
        result JSONB,
        error JSONB,
        fence BIGINT DEFAULT 0 NOT NULL,
        worker_id UUID,
        stream_owner UUID,
        losses INTEGER DEFAULT 0 NOT NULL,
        total_losses INTEGER DEFAULT 0 NOT NULL,
        num_tokens INTEGER DEFAULT 0 NOT NULL,
        loss_tokens INTEGER DEFAULT 0 NOT NULL,
        not_before TIMESTAMP WITH TIME ZONE,
        deadline TIMESTAMP WITH TIME ZONE,
        lease_until TIMESTAMP WITH TIME ZONE,
        cancel_requested BOOLEAN DEFAULT false NOT NULL,
        traceparent TEXT DEFAULT '' NOT NULL,
        idempotency_key TEXT,
        request_digest TEXT DEFAULT '' NOT NULL,
        content_kept BOOLEAN DEFAULT true NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        assigned_at TIMESTAMP WITH TIME ZONE,
        started_at TIMESTAMP WITH TIME ZONE,
        ended_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (id),
        CONSTRAINT jobs_state CHECK (state in ('queued','assigned','running','succeeded','failed','cancelled')),
        CONSTRAINT jobs_held_by_somebody CHECK ((state in ('assigned','running')) <= (worker_id is not null)),
        CONSTRAINT jobs_end_time CHECK ((state in ('succeeded','failed','cancelled')) = (ended_at is not null))
    )
     WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0)
    """,
    """
    CREATE INDEX jobs_by_tenant ON jobs (tenant, id DESC)
    """,
    """
    CREATE INDEX jobs_contents ON jobs (ended_at, id) WHERE ended_at is not null and content_kept
    """,
    """
    CREATE INDEX jobs_ended ON jobs (ended_at, id) WHERE ended_at is not null
    """,
    """
    CREATE INDEX jobs_held ON jobs (worker_id) WHERE state in ('assigned','running')
    """,
    """
    CREATE UNIQUE INDEX jobs_idempotency ON jobs (tenant, idempotency_key) WHERE idempotency_key is not null
    """,
    """
    CREATE INDEX jobs_open_by_tenant ON jobs (tenant, state) WHERE ended_at is null
    """,
    """
    CREATE INDEX jobs_queue ON jobs (model_digest, (fence > 0) DESC, priority DESC, created_at, id)
    WHERE state = 'queued'
    """,
    """
    CREATE INDEX jobs_queue_deadline ON jobs (deadline) WHERE state = 'queued' and deadline is not null
    """,
    """
    CREATE INDEX jobs_streams ON jobs (stream_owner) WHERE ended_at is null and stream_owner is not null
    """,
    """
    CREATE TABLE job_events (
        id BIGINT GENERATED ALWAYS AS IDENTITY,
        job_id UUID NOT NULL,
        time TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        event TEXT NOT NULL,
        fence BIGINT DEFAULT 0 NOT NULL,
        process_id UUID,
        details JSONB DEFAULT '{}' NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX job_events_by_job ON job_events (job_id, id)
    """,
    """
    CREATE TABLE processes (
        id UUID NOT NULL,
        role TEXT NOT NULL,
        address TEXT DEFAULT '' NOT NULL,
        http_address TEXT DEFAULT '' NOT NULL,
        metrics_address TEXT DEFAULT '' NOT NULL,
        host TEXT DEFAULT '' NOT NULL,
        pid INTEGER DEFAULT 0 NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        heartbeat_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        lease_s DOUBLE PRECISION NOT NULL,
        draining BOOLEAN DEFAULT false NOT NULL,
        suspected_at TIMESTAMP WITH TIME ZONE,
        card JSONB,
        capacity JSONB DEFAULT '{}' NOT NULL,
        load JSONB DEFAULT '{}' NOT NULL,
        PRIMARY KEY (id),
        CONSTRAINT processes_role CHECK (role in ('gateway','scheduler','worker'))
    )
     WITH (fillfactor = 50)
    """,
    """
    CREATE TABLE tenants (
        name TEXT NOT NULL,
        max_running INTEGER,
        max_queued INTEGER,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (name)
    )
    """,
    """
    CREATE TABLE api_keys (
        hash TEXT NOT NULL,
        tenant TEXT NOT NULL,
        scope TEXT NOT NULL,
        name TEXT DEFAULT '' NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        revoked_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (hash),
        CONSTRAINT api_keys_scope CHECK (scope in ('user','admin'))
    )
    """,
    """
    CREATE TABLE artifacts (
        digest TEXT NOT NULL,
        media_type TEXT NOT NULL,
        data BYTEA NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        PRIMARY KEY (digest)
    )
    """,
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.execute(f"drop table {table}")
