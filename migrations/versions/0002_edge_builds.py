"""Edge builders are processes too, and find the next job of their kind quickly.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INDEX = """
CREATE INDEX jobs_pulled ON jobs (kind, priority DESC, created_at, id)
WHERE state = 'queued' and kind <> 'generation'
"""
_ROLES = "ALTER TABLE processes DROP CONSTRAINT processes_role, ADD CONSTRAINT processes_role CHECK (role in ({}))"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '10s'")
    op.execute(_ROLES.format("'gateway','scheduler','worker','edge_builder'"))
    op.execute(_INDEX)


def downgrade() -> None:
    op.execute("DELETE FROM processes WHERE role = 'edge_builder'")
    op.execute(_ROLES.format("'gateway','scheduler','worker'"))
    op.execute("DROP INDEX jobs_pulled")
