"""The revisions lead to what tables.py says, from nothing, by any number of processes at once, and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, make_url

from octavo_common.db import migrate
from octavo_common.db.tables import metadata
from octavo_common.errors import Unavailable

# What Postgres itself says about a schema, in its own words.
_CATALOG = {
    "columns": "select table_name, column_name, data_type, udt_name, is_nullable, column_default, is_identity"
    " from information_schema.columns where table_schema = 'public' order by 1, 2",
    "indexes": "select tablename, indexname, indexdef from pg_indexes where schemaname = 'public' order by 1, 2",
    "constraints": "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint"
    " where connamespace = 'public'::regnamespace order by 1, 2",
    "options": "select relname, reloptions from pg_class where relnamespace = 'public'::regnamespace"
    " and relkind = 'r' order by 1",
}


def catalog(dsn: str) -> dict[str, list[Any]]:
    with psycopg.connect(dsn) as connection:
        found = {name: connection.execute(query).fetchall() for name, query in _CATALOG.items()}
    return {name: [row for row in rows if "alembic_version" not in row] for name, rows in found.items()}


def sync_engine(dsn: str) -> Any:
    return create_engine(make_url(dsn).set(drivername="postgresql+psycopg"))


def test_the_revisions_make_exactly_the_tables_of_tables_py(pg_dsn: str, pg_empty_dsn: str) -> None:
    engine = sync_engine(pg_empty_dsn)
    metadata.create_all(engine)
    engine.dispose()
    migrated, declared = catalog(pg_dsn), catalog(pg_empty_dsn)
    assert len(declared["columns"]) > 50
    for part in _CATALOG:
        assert migrated[part] == declared[part]


def test_alembic_sees_nothing_to_add(pg_dsn: str) -> None:
    engine = sync_engine(pg_dsn)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_five_processes_upgrade_an_empty_database_at_once_and_all_succeed(pg_empty_dsn: str) -> None:
    code = "import sys; from octavo_common.db.migrate import upgrade; upgrade(sys.argv[1])"
    started = [subprocess.Popen([sys.executable, "-c", code, pg_empty_dsn], stderr=subprocess.PIPE) for _ in range(5)]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert migrate.current(pg_empty_dsn) == migrate.head()


def test_upgrading_twice_changes_nothing_and_downgrading_leaves_nothing(pg_empty_dsn: str) -> None:
    assert migrate.current(pg_empty_dsn) is None
    migrate.upgrade(pg_empty_dsn)
    first = catalog(pg_empty_dsn)
    migrate.upgrade(pg_empty_dsn)
    assert catalog(pg_empty_dsn) == first
    migrate.downgrade(pg_empty_dsn, "base")
    assert not any(catalog(pg_empty_dsn).values())
    migrate.upgrade(pg_empty_dsn)
    assert catalog(pg_empty_dsn) == first


def test_a_database_that_does_not_answer_is_a_clear_error() -> None:
    with pytest.raises(Unavailable):
        migrate.upgrade("postgresql://nobody:p%25w@127.0.0.1:9/none")
    with pytest.raises(Unavailable):
        migrate.current("postgresql://nobody:p%25w@127.0.0.1:9/none")


def test_revisions_are_numbered_in_one_line_and_never_import_our_code() -> None:
    script = ScriptDirectory(str(migrate.migrations_dir()))
    assert len(script.get_heads()) == 1
    for revision in script.walk_revisions():
        source = Path(revision.path)
        assert source.name.startswith(f"{revision.revision}_")
        assert "octavo" not in source.read_text()
