"""How many sequences a job is: what limits and placement count.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; its constant default rewrites no row."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE jobs ADD COLUMN num_sequences INTEGER DEFAULT 1 NOT NULL")


def downgrade() -> None:
    """Drop it."""
    op.execute("ALTER TABLE jobs DROP COLUMN num_sequences")
