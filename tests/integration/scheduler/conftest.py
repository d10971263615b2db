"""A database with helpers, and schedulers as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from scheduler_world import TOKEN, World

from octavo_common.db.engine import connect


@pytest.fixture
async def world(pg_dsn: str) -> AsyncIterator[World]:
    database = connect(pg_dsn)
    made = World(pg_dsn, database)
    yield made
    await made.close()
    await database.dispose()


@pytest.fixture
def start_scheduler(pg_dsn: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `python -m octavo_scheduler`; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**changes: str) -> subprocess.Popen[bytes]:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OCTAVO_", "OTEL_"))},
            "OCTAVO_DATABASE_URL": pg_dsn,
            "OCTAVO_INTERNAL_TOKEN": TOKEN,
            "OCTAVO_DATA_DIR": str(tmp_path),
            **changes,
        }
        with (tmp_path / f"scheduler-{len(started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "octavo_scheduler"], env=environ, stdout=subprocess.PIPE, stderr=log
            )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()
