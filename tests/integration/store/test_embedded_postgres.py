"""The server of our own: made, adopted, killed, restarted, moved to another port; as root and as somebody else."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from octavo_common.db.embedded import EmbeddedPostgres
from octavo_common.db.pgbinaries import find_binaries, find_runner, reachable
from octavo_common.errors import Unavailable

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="octavo-test-pg-"))
    path.chmod(0o755)
    yield path
    EmbeddedPostgres(path / "data").stop()
    shutil.rmtree(path)


def pid_of(data_dir: Path) -> int:
    return int((data_dir / "pg" / "postmaster.pid").read_text().split()[0])


def ask(dsn: str, question: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question).fetchone()
        return None if row is None else row[0]


def test_a_server_is_made_adopted_stopped_and_started_at_the_same_address(folder: Path) -> None:
    data_dir = folder / "data"
    first, second = EmbeddedPostgres(data_dir), EmbeddedPostgres(data_dir)
    assert not first.is_running
    first.stop()
    dsn = first.start()
    assert (data_dir / "pg.json").stat().st_mode & 0o777 == 0o600
    pid = pid_of(data_dir)
    assert first.start() == second.start() == dsn
    assert pid_of(data_dir) == pid
    assert int(str(ask(dsn, "show max_connections"))) >= 200
    with psycopg.connect(dsn) as connection:
        connection.execute("create table kept(x int); insert into kept values (7)")
    second.stop()
    assert not first.is_running
    assert first.start() == dsn
    assert ask(dsn, "select x from kept") == 7


def test_a_killed_server_recovers_what_was_committed_at_the_same_address(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "data")
    dsn = server.start()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table kept as select 7 as x")
        os.kill(pid_of(folder / "data"), signal.SIGKILL)
    assert server.start() == dsn
    assert ask(dsn, "select x from kept") == 7


def test_processes_that_start_it_at_once_share_one_server(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from octavo_common.db.embedded import EmbeddedPostgres;"
        "print(EmbeddedPostgres(Path(sys.argv[1])).start())"
    )
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", code, str(folder / "data")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
    told = {process.communicate(timeout=120)[0].decode().split()[-1] for process in started}
    assert told == {EmbeddedPostgres(folder / "data").start()}


def test_a_taken_port_is_left_to_its_owner(folder: Path) -> None:
    server = EmbeddedPostgres(folder / "data")
    old = server.start()
    server.stop()
    port = int(old.rsplit(":", 1)[1].split("/")[0])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        new = server.start()
    assert new != old
    assert ask(new, "select 1") == 1


def test_an_interrupted_creation_and_a_stale_pid_file_do_not_hinder_a_start(folder: Path) -> None:
    data_dir = folder / "data"
    (data_dir / "pg.new").mkdir(parents=True)
    (data_dir / "pg.new" / "half").touch()
    server = EmbeddedPostgres(data_dir)
    dsn = server.start()
    server.stop()
    # The pid is alive and another program's.
    (data_dir / "pg" / "postmaster.pid").write_text(f"{os.getpid()}\n{data_dir}/pg\n0\n1\n\n127.0.0.1\n")
    assert not server.is_running
    assert server.start() == dsn


def test_a_cluster_of_another_version_or_without_its_address_is_a_clear_error(folder: Path) -> None:
    data_dir = folder / "data"
    server = EmbeddedPostgres(data_dir)
    server.start()
    server.stop()
    version = data_dir / "pg" / "PG_VERSION"
    real = version.read_text()
    version.write_text("9\n")
    with pytest.raises(Unavailable, match="PostgreSQL 9"):
        server.start()
    version.write_text(real)
    (data_dir / "pg.json").rename(data_dir / "away.json")
    with pytest.raises(Unavailable, match=r"pg\.json"):
        server.start()
    (data_dir / "away.json").rename(data_dir / "pg.json")
    server.start()


@needs_root
def test_root_hands_the_server_to_nobody_and_leaves_permissions_of_others_alone(folder: Path) -> None:
    before = {path: path.stat().st_mode for path in (folder, *folder.parents)}
    EmbeddedPostgres(folder / "data").start()
    uid = Path(f"/proc/{pid_of(folder / 'data')}").stat().st_uid
    assert uid != 0
    assert {path: path.stat().st_mode for path in before} == before


@needs_root
def test_root_serves_a_folder_that_only_root_may_enter(folder: Path) -> None:
    folder.chmod(0o700)
    try:
        dsn = EmbeddedPostgres(folder / "data").start()
    except Unavailable as error:
        pytest.skip(f"no user namespaces here: {error}")
    assert ask(dsn, "select 1") == 1
    assert folder.stat().st_mode & 0o777 == 0o700


@needs_root
def test_binaries_that_nobody_can_reach_are_copied_beside_the_cluster(folder: Path) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    package = find_binaries().parent.parent
    shutil.copytree(package / "pginstall18", private / package.name / "pginstall18", symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    shutil.copytree(libraries, private / libraries.name, symlinks=True)
    hidden = private / package.name / "pginstall18" / "bin"
    assert not reachable(hidden)
    server = EmbeddedPostgres(folder / "data", bin_dir=hidden)
    assert ask(server.start(), "select 1") == 1
    assert reachable(find_runner(folder / "data", bin_dir=hidden).bin_dir)
    assert Path(f"/proc/{pid_of(folder / 'data')}").stat().st_uid != 0


def _start_and_stop_as_nobody(data_dir: Path) -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    server = EmbeddedPostgres(data_dir)
    assert ask(server.start(), "select 1") == 1
    server.stop()
    assert not server.is_running


@needs_root
def test_an_ordinary_user_starts_and_stops_a_server(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    # Forked, not executed anew: the interpreter itself may be where only root can reach it.
    child = multiprocessing.get_context("fork").Process(target=_start_and_stop_as_nobody, args=(folder / "data",))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    child.close()
