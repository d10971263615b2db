"""A tenant's limits, set by the command and read from the table that acceptance and placement look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytestmark = pytest.mark.db


def _limits(dsn: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    environ |= {"OCTAVO_DATABASE_URL": dsn, "OCTAVO_DATA_DIR": str(folder)}
    command = [sys.executable, "-m", "octavo_cli", "keys", "limits", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def _row(dsn: str, tenant: str) -> tuple[int | None, int | None] | None:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select max_running, max_queued from tenants where name = %s", [tenant]).fetchone()


def test_limits_are_set_one_by_one_shown_and_lifted(pg_dsn: str, tmp_path: Path) -> None:
    assert json.loads(_limits(pg_dsn, tmp_path, "acme", "--json").stdout) == {
        "tenant": "acme", "max_running": None, "max_queued": None,
    }  # fmt: skip
    assert _row(pg_dsn, "acme") is None, "looking makes no tenant"
    assert _limits(pg_dsn, tmp_path, "acme", "--max-queued", "5").returncode == 0
    assert _limits(pg_dsn, tmp_path, "acme", "--max-running", "0").returncode == 0
    assert _row(pg_dsn, "acme") == (0, 5)
    assert _limits(pg_dsn, tmp_path, "acme", "--max-running", "none").returncode == 0
    assert _row(pg_dsn, "acme") == (None, 5)


def test_what_is_no_number_of_jobs_changes_nothing(pg_dsn: str, tmp_path: Path) -> None:
    for wrong in ("-1", "many", "1.5"):
        done = _limits(pg_dsn, tmp_path, "acme", "--max-queued", wrong)
        assert done.returncode != 0
        assert "neither a number of jobs" in done.stderr and "Traceback" not in done.stderr
    assert _row(pg_dsn, "acme") is None
