"""Brings a database to the newest schema. Knows no tables; the revisions do."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, exc, make_url, pool

from octavo_common.errors import Unavailable


def upgrade(dsn: str) -> None:
    """Apply all revisions that are missing. Any number of processes may do so at once. Raises Unavailable."""
    try:
        command.upgrade(_config(dsn), "head")
    except exc.OperationalError as error:
        hint = "is OCTAVO_DATABASE_URL right?"
        raise Unavailable(f"the database cannot be migrated: {error.orig}", hint=hint) from error


def downgrade(dsn: str, revision: str) -> None:
    """Take revisions back, down to the one named ("base": all)."""
    command.downgrade(_config(dsn), revision)


def current(dsn: str) -> str | None:
    """The revision that a database has; None when it has none. Raises Unavailable."""
    engine = create_engine(make_url(dsn).set(drivername="postgresql+psycopg"), poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except exc.OperationalError as error:
        raise Unavailable(f"the database does not answer: {error.orig}") from error
    finally:
        engine.dispose()


def head() -> str:
    """The newest revision that this package knows."""
    found = ScriptDirectory(str(migrations_dir())).get_current_head()
    assert found is not None
    return found


def migrations_dir() -> Path:
    """The folder of the revisions: packaged beside this file, else the repository's."""
    packaged = Path(__file__).parent / "migrations"
    return packaged if packaged.exists() else Path(__file__).resolve().parents[4] / "migrations"


def _config(dsn: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    # The configuration file's syntax gives % a meaning.
    config.set_main_option("sqlalchemy.url", dsn.replace("%", "%%"))
    return config
