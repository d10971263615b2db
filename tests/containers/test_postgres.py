"""The job table on the Postgres that the compose stack uses, in a container of its own."""

from __future__ import annotations

import docker
import pytest

from octavo_common.db.migrate import upgrade
from octavo_common.db.tables import metadata

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def test_migrations_apply_to_a_postgres_of_another_release(engine: docker.DockerClient) -> None:
    import psycopg
    from testcontainers.community.postgres import PostgresContainer

    with PostgresContainer("postgres:16", driver=None) as postgres:
        dsn = postgres.get_connection_url()
        upgrade(dsn)
        upgrade(dsn)
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
    assert {name for (name,) in rows} >= set(metadata.tables)
