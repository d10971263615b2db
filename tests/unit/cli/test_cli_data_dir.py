"""A data directory that cannot be used, and a disk that is full: one line that says so, and nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from octavo_cli import __main__ as entry
from octavo_cli import invocation
from octavo_cli.context import Context
from octavo_cli.datadir import DataDir
from octavo_cli.failures import explained
from octavo_cli.supervisor import state
from octavo_common import space
from octavo_common.models.catalog import CATALOG


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    for name in [name for name in os.environ if name.startswith("OCTAVO_")]:
        monkeypatch.delenv(name)

    def command(*words: str) -> tuple[int, str, str]:
        code = entry.run(list(words))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def unusable(tmp_path: Path) -> dict[str, Path]:
    """Places where no data directory can be."""
    file = tmp_path / "file"
    file.write_text("x")
    return {"a file": file, "below a file": file / "data", "the kernel's": Path("/proc/octavo")}


CASES = ["a file", "below a file", "the kernel's"]
# With a word of the question of the database none of them would need the folder.
NEEDING = [("up",), ("up", "--detach", "--wait"), ("keys", "init"), ("models", "pull")]


@pytest.mark.parametrize("words", NEEDING, ids=" ".join)
@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_cannot_be_made_is_one_line_and_no_fault_of_ours(run, unusable, case, words) -> None:
    root = unusable[case]
    code, out, err = run("--data-dir", str(root), *words)
    (line,) = err.strip().splitlines()
    assert (code, out) == (1, "")
    assert line.startswith(f"error: the data directory {root} cannot be ") and "--data-dir" in line


@pytest.mark.parametrize("case", CASES)
def test_what_needs_no_folder_says_as_ever_that_nothing_runs(run, unusable, case) -> None:
    root = unusable[case]
    assert run("--data-dir", str(root), "down")[0] == 0
    for words in (("status",), ("workers",), ("generate", "x")):
        code, out, err = run("--data-dir", str(root), *words)
        assert (code, out) == (1, "") and f"No platform is running in {root}" in err


@pytest.mark.parametrize("case", CASES)
def test_doctor_says_that_the_folder_cannot_be_made(run, unusable, case) -> None:
    code, out, _ = run("--data-dir", str(unusable[case]), "doctor", "--json")
    (found,) = [finding for finding in json.loads(out) if finding["what"] == "data directory"]
    assert (code, found["level"]) == (1, "error") and "cannot be" in found["found"] and found["hint"]


def test_a_folder_that_is_usable_has_no_problem_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    assert DataDir(tmp_path / "a" / "b").problem() == "" == DataDir(tmp_path).problem()
    assert list(tmp_path.iterdir()) == []


def test_looking_for_a_platform_writes_nothing(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path / "data")
    assert not state.is_up(data_dir) and list(tmp_path.iterdir()) == []
    lock = state.UpLock(data_dir)
    assert lock.take() and state.is_up(data_dir)
    lock.release()
    assert not state.is_up(data_dir)


def test_a_disk_without_room_is_named_with_what_is_free_and_what_is_needed(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    space.require(folder, 1, "a byte")
    with pytest.raises(space.NoSpace) as caught:
        space.require(folder, 2**62, "everything")
    assert caught.value.message.startswith(f"no space left on the device of {folder}: ")
    assert "MB free" in caught.value.message and "MB needed for everything" in caught.value.message
    assert "--data-dir" in caught.value.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_known_by_its_error_and_by_the_words_of_others(number: int) -> None:
    error = OSError(number, os.strerror(number), "/x")
    assert space.says_full(error) and space.says_full(f"initdb: error: could not write: {os.strerror(number)}\n")
    assert not space.says_full(OSError(errno.EACCES, "Permission denied")) and not space.says_full("no such file")


def test_a_disk_that_fills_up_in_the_middle_is_no_fault_of_ours(tmp_path: Path) -> None:
    context = Context.make(data_dir=tmp_path, address="", key="")
    found = explained(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "x")), context)
    assert isinstance(found, space.NoSpace) and str(tmp_path) in found.message


def test_up_looks_for_room_before_it_begins(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda folder: 150_000_000)
    # The usual ones may be taken, by a test beside this one or by whoever was given any free port.
    for name in ("OCTAVO_GATEWAY_GRPC_PORT", "OCTAVO_GATEWAY_HTTP_PORT", "OCTAVO_CONSOLE_PORT"):
        monkeypatch.setenv(name, "0")
    code, out, err = run("--data-dir", str(tmp_path / "data"), "up")
    last = err.strip().splitlines()[-1]
    model = next(iter(CATALOG))
    assert (code, out) == (1, "")
    assert "150 MB free" in last and f"for the database and the model '{model}'" in last
    assert not (tmp_path / "data" / "pg").exists()


def test_a_line_to_call_the_command_again_works_as_it_stands(tmp_path: Path) -> None:
    import shlex
    import subprocess

    folder = tmp_path / "a data directory"
    words = shlex.split(invocation.line(folder, "status", "--json"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environ, timeout=60)
    assert done.returncode == 1 and json.loads(done.stdout)["data_dir"] == str(folder)


def test_the_default_directory_needs_no_mention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_DATA_DIR", raising=False)
    default = Context.make(data_dir=None, address="", key="")
    assert "--data-dir" not in default.line("down") and default.line("down").endswith(" down")


def test_a_state_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    up = state.UpState(pid=1, started=2, phase="ready")
    state.write(tmp_path / "up.json", up)
    (tmp_path / f"up.{os.getpid()}.tmp").mkdir()
    with pytest.raises(OSError):
        state.write(tmp_path / "up.json", state.UpState(pid=1, started=2, phase="stopping"))
    assert state.read(tmp_path / "up.json") == up
    assert stat.S_ISREG((tmp_path / "up.json").stat().st_mode)
