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
    command = [sys.executable, "-m", "octavo_cli", "tenants", "limits", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def _row(dsn: str, tenant: str) -> tuple[int | None, int | None] | None:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select max_running, max_queued from tenants where name = %s", [tenant]).fetchone()


def _shown(dsn: str, folder: Path, *words: str) -> list[dict[str, object]]:
    return json.loads(_limits(dsn, folder, "show", *words, "--json").stdout)


def test_limits_are_set_one_by_one_shown_and_lifted(pg_dsn: str, tmp_path: Path) -> None:
    assert _shown(pg_dsn, tmp_path, "acme") == [{"tenant": "acme", "max_running": None, "max_queued": None}]
    assert _row(pg_dsn, "acme") is None, "looking makes no tenant"
    assert _limits(pg_dsn, tmp_path, "set", "acme", "--max-queued", "5").returncode == 0
    assert _limits(pg_dsn, tmp_path, "set", "acme", "--max-running", "0").returncode == 0
    assert _row(pg_dsn, "acme") == (0, 5)
    assert _limits(pg_dsn, tmp_path, "set", "acme", "--max-running", "none").returncode == 0
    assert _row(pg_dsn, "acme") == (None, 5)
    assert _limits(pg_dsn, tmp_path, "set", "other", "--max-queued", "1").returncode == 0
    assert {"tenant": "acme", "max_running": None, "max_queued": 5} in _shown(pg_dsn, tmp_path)
    assert {"tenant": "other", "max_running": None, "max_queued": 1} in _shown(pg_dsn, tmp_path)
    table = _limits(pg_dsn, tmp_path, "show").stdout
    assert [line.split() for line in table.splitlines() if line.startswith("acme")] == [["acme", "none", "5"]]


def test_what_is_no_number_of_jobs_changes_nothing(pg_dsn: str, tmp_path: Path) -> None:
    for wrong in ("-1", "many", "1.5"):
        done = _limits(pg_dsn, tmp_path, "set", "acme", "--max-queued", wrong)
        assert done.returncode != 0
        assert "neither a number of jobs" in done.stderr and "Traceback" not in done.stderr
    nothing = _limits(pg_dsn, tmp_path, "set", "acme")
    assert nothing.returncode != 0 and "no limit is given" in nothing.stderr
    assert _row(pg_dsn, "acme") is None
