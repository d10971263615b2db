"""Fixtures that all tests may use: a real Postgres for the session, a migrated database for each test, a model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest
import structlog
from plugins_models import demo_model_path
from psycopg import sql
from sqlalchemy import make_url

from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.db.migrate import upgrade
from octavo_worker.kernels.amx_bf16 import has_amx_bf16

__all__ = ["demo_model_path"]
_numbers = count()


@pytest.fixture(autouse=True)
def _logs_of_its_own() -> Iterator[None]:
    """A test that configures the logs leaves the next one no stream that is closed by then."""
    yield
    structlog.reset_defaults()


def pytest_configure() -> None:
    """Let Ctrl-C mean what it does in a terminal: what a shell starts in the background is born deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this processor cannot run: nothing that could be installed would change it."""
    if has_amx_bf16():
        return
    impossible = [item for item in items if item.get_closest_marker("amx")]
    config.hook.pytest_deselected(items=impossible)
    items[:] = [item for item in items if not item.get_closest_marker("amx")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With OCTAVO_TEST_NO_SKIPS a skipped test is a failure: there, everything that a test may need is installed."""
    skipped = terminalreporter.stats.get("skipped", [])
    if os.environ.get("OCTAVO_TEST_NO_SKIPS") and skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were skipped, and none may be here", red=True)
        terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a disk of a size as mount writes it ("1m"), in memory; gives the folder where it is mounted."""
    folders: list[Path] = []

    def make(size: str) -> Path:
        folder = tmp_path / f"disk-{size}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("needs the right to mount a file system")
        folders.append(folder)
        return folder

    yield make
    for folder in folders:
        # A process that was killed may still be on its way out.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def pg_admin_dsn() -> Iterator[str]:
    """A server for the session: the embedded one, or the one that OCTAVO_TEST_DATABASE_URL names."""
    given = os.environ.get("OCTAVO_TEST_DATABASE_URL")
    if given:
        yield given
        return
    # Not under pytest's own folder: only root may enter that, and the server is not root.
    folder = Path(tempfile.mkdtemp(prefix="octavo-test-pg-"))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder)
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def pg_template(pg_admin_dsn: str) -> Iterator[str]:
    """Name of a migrated database that others are cloned from."""
    name = f"template_{os.getpid()}"
    with _created(pg_admin_dsn, name, None) as dsn:
        upgrade(dsn)
        yield name


@pytest.fixture
def pg_dsn(pg_admin_dsn: str, pg_template: str) -> Iterator[str]:
    """A database of the test's own, migrated and empty."""
    with _created(pg_admin_dsn, f"test_{os.getpid()}_{next(_numbers)}", pg_template) as dsn:
        yield dsn


@pytest.fixture
def pg_empty_dsn(pg_admin_dsn: str) -> Iterator[str]:
    """A database of the test's own without any table."""
    with _created(pg_admin_dsn, f"test_{os.getpid()}_{next(_numbers)}", None) as dsn:
        yield dsn


@contextmanager
def _created(admin_dsn: str, name: str, template: str | None) -> Iterator[str]:
    """Create a database, and drop it at the end, whoever is still connected."""
    clause = sql.SQL("template {}").format(sql.Identifier(template or "template0"))
    _execute(admin_dsn, sql.SQL("create database {} {}").format(sql.Identifier(name), clause))
    try:
        yield make_url(admin_dsn).set(database=name).render_as_string(hide_password=False)
    finally:
        _execute(admin_dsn, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _execute(admin_dsn: str, statement: sql.Composed) -> None:
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        connection.execute(statement)
