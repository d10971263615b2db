"""A gateway and an edge builder as processes on a database of their own, with a small random model to build."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from octavo_common.db.engine import connect
from octavo_common.store import KeyStore

START_S = 120.0


@dataclass
class BuildPlatform:
    """The processes, and what a client needs to know of them."""

    dsn: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def start(self, service: str, *arguments: str, role: str) -> str:
        """Start a service; returns its address when it has told it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        settings = {
            "OCTAVO_DATABASE_URL": self.dsn,
            "OCTAVO_INTERNAL_TOKEN": self.token,
            "OCTAVO_DATA_DIR": str(self.folder),
            "OCTAVO_GATEWAY_GRPC_PORT": "0",
            "OCTAVO_GATEWAY_HTTP_PORT": "0",
            "OCTAVO_EDGE_NUM_THREADS": "1",
        }
        with (self.folder / f"{role}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", service, *arguments],
                env=kept | settings,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.processes[role] = process
        end_s = time.monotonic() + START_S
        while not (address := self._address(role)):
            assert process.poll() is None and time.monotonic() < end_s, (self.folder / f"{role}.log").read_text()
            time.sleep(0.1)
        return address

    def stop(self) -> None:
        """End all."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=30)
            finally:
                process.kill()

    def admin_key(self) -> str:
        """A new key of an operator."""

        async def create() -> str:
            database = connect(self.dsn, pool_size=1, application_name="test")
            try:
                return await KeyStore(database).create("ops", "admin", "test")
            finally:
                await database.dispose()

        return asyncio.run(create())

    def _address(self, role: str) -> str:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute("select address from processes where role = %s", (role,)).fetchone()
        return row[0] if row else ""


@contextmanager
def build_platform(admin_dsn: str, template: str, folder: Path) -> Iterator[BuildPlatform]:
    """The platform on a clone of a database; nothing of it runs yet."""
    name = f"builds_{os.getpid()}_{secrets.token_hex(4)}"
    create = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
    drop = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
    _execute(admin_dsn, create)
    platform = BuildPlatform(make_url(admin_dsn).set(database=name).render_as_string(hide_password=False), folder)
    try:
        yield platform
    finally:
        platform.stop()
        _execute(admin_dsn, drop)


def _execute(admin_dsn: str, statement: sql.Composed) -> None:
    with psycopg.connect(admin_dsn, autocommit=True) as connection:
        connection.execute(statement)
