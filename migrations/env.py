"""Runs migrations under an advisory lock: of services that start at once, one migrates and the others wait for it."""

from alembic import context
from sqlalchemy import create_engine, make_url, pool, text

from octavo_common.db.tables import metadata

# Any constant that nothing else in the database uses.
_LOCK = 0x0C7A_4F00


def _migrate() -> None:
    url = make_url(context.config.get_main_option("sqlalchemy.url") or "").set(drivername="postgresql+psycopg")
    engine = create_engine(url, poolclass=pool.NullPool, connect_args={"connect_timeout": 10})
    with engine.connect() as connection:
        # Of the session, and outside the transaction: it is held until the commit is over.
        connection.execute(text("select pg_advisory_lock(:key)"), {"key": _LOCK})
        connection.commit()
        try:
            context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=False)
            with context.begin_transaction():
                context.run_migrations()
        finally:
            connection.rollback()
            connection.execute(text("select pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()
    engine.dispose()


def _print_sql() -> None:
    context.configure(dialect_name="postgresql", target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    _print_sql()
else:
    _migrate()
