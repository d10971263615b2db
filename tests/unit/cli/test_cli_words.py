"""What the command says and how it ends: one line with a hint, and an exit code."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

import octavo as octavo_sdk
from octavo_cli import __main__ as entry
from octavo_cli.context import Context
from octavo_cli.datadir import DataDir
from octavo_cli.failures import explained
from octavo_cli.output import times
from octavo_cli.settings import find_data_dir


@pytest.fixture
def octavo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """(exit code, stdout, stderr) of a command in an empty data directory, with no platform to reach."""
    for name in ("OCTAVO_ADDRESS", "OCTAVO_API_KEY", "OCTAVO_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OCTAVO_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("OCTAVO_GATEWAY_GRPC_PORT", "1")

    def run(*words: str) -> tuple[int, str, str]:
        code = entry.run(list(words))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize("name", entry.COMMANDS)
def test_every_command_has_help(octavo, name: str) -> None:
    code, out, _ = octavo(name, "--help")
    assert code == 0 and out.startswith("Usage: octavo " + name)


@pytest.mark.parametrize(
    ("words", "expected", "says"),
    [
        (["generate"], 2, "Missing argument"),
        (["generate", "x", "--max-tokens", "many"], 2, "not a valid integer"),
        (["nonsense"], 2, "No such command"),
        (["generate", ""], 2, "the prompt is empty"),
        (["generate", " \n"], 2, "the prompt is empty"),
        (["generate", "", "--raw"], 2, "the prompt is empty"),
        (["jobs", "list", "--state", "lost"], 2, "'failed'"),
        (["jobs", "list", "--state", "failed"], 1, "No platform is running in "),
        (["jobs", "list", "--state", "FAILED"], 1, "No platform is running in "),
        (["jobs", "watch", "x"], 1, "No platform is running in "),
        (["generate", "x"], 1, " up`"),
        (["jobs", "list"], 1, " up`"),
        (["jobs", "show", "x"], 1, " up`"),
        (["workers"], 1, " up`"),
        (["keys", "show"], 1, "octavo up"),
        (["keys", "list"], 1, " up`"),
        (["db", "url"], 1, " up`"),
        (["db", "status"], 1, " up`"),
        (["status"], 1, " up`"),
        (["models", "pull", "no-such-model"], 1, "smollm2-135m"),
        (["--address", "nowhere", "workers"], 1, "host:port"),
    ],
)
def test_a_failure_is_one_line_with_a_hint_and_nothing_on_stdout(octavo, words, expected, says) -> None:
    code, out, err = octavo(*words)
    assert (code, out) == (expected, "")
    assert says in err and len(err.strip().splitlines()) == 1 and "Traceback" not in err


def test_down_without_a_platform_is_no_failure_and_names_the_directory(octavo, tmp_path: Path) -> None:
    code, out, err = octavo("down")
    assert (code, out, err) == (0, "", f"nothing was running in {tmp_path / 'data'}\n")


@pytest.mark.parametrize("words", [("generate", "x"), ("jobs", "list"), ("workers",)])
def test_an_address_where_nobody_listens_is_said_without_the_words_of_the_transport(octavo, words) -> None:
    code, out, err = octavo("--address", "127.0.0.1:1", *words)
    assert (code, out) == (1, "")
    assert err.startswith("error: the platform at 127.0.0.1:1 does not answer [UNAVAILABLE] - ")
    assert "ipv4" not in err and "UNKNOWN" not in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (octavo_sdk.UnavailableError("failed to connect to all addresses", job_id="j-1"), "jobs watch j-1"),
        (octavo_sdk.UnavailableError("the gateway stops", told=True, job_id="j-1"), "it keeps job j-1"),
        (octavo_sdk.UnimplementedError("Method not found!"), "does not speak as an Octavo gateway does"),
        (octavo_sdk.PermissionDeniedError("Received http2 header with status: 403"), "does not speak as"),
        (octavo_sdk.DeadlineExceededError("Deadline Exceeded"), "did not answer in the time given"),
        (octavo_sdk.DeadlineExceededError("Stream removed (Deadline Exceeded)", job_id="j-1"), "job j-1 has not ended"),
        (octavo_sdk.UnavailableError("no worker serves it", told=True), "no worker serves it"),
        (octavo_sdk.InternalError("a fault", told=True), "a fault"),
    ],
)
def test_what_octavo_says_is_kept_and_what_the_transport_says_is_put_into_words(tmp_path: Path, error, says) -> None:
    found = explained(error, Context.make(data_dir=tmp_path, address="127.0.0.1:1", key="k"))
    assert says in f"{found.message} {found.hint}"  # type: ignore[attr-defined]
    assert (found is error) == (error.told and not error.job_id)


@pytest.mark.parametrize(("number", "words"), [(1, "once"), (2, "twice"), (3, "3 times")])
def test_how_often_is_said_as_people_say_it(number: int, words: str) -> None:
    assert times(number) == words


def test_help_says_which_data_directory_is_taken(octavo) -> None:
    _, out, _ = octavo("--help")
    told = " ".join(out.split())
    assert ".octavo in the clone around the working directory" in told and "~/.local/share/octavo" in told


def test_status_as_json_is_json_also_without_a_platform(octavo) -> None:
    code, out, _ = octavo("status", "--json")
    assert code == 1 and json.loads(out)["phase"] == "stopped"


def test_doctor_redacts_secrets_and_reports_unknown_variables(octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_GATEWAY_GRPC_PROT", "1")
    monkeypatch.setenv("OCTAVO_API_KEY", "ok-very-secret")
    monkeypatch.setenv("OCTAVO_DATABASE_URL", "postgresql://u:hunter2@127.0.0.1:1/d")
    code, out, err = octavo("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(out)}
    assert findings["variable OCTAVO_GATEWAY_GRPC_PROT"]["level"] == "warning"
    assert findings["OCTAVO_WORKER_MODEL"]["found"] == "(unset)"
    assert "very-secret" not in out + err and "hunter2" not in out + err
    assert findings["database"]["level"] == "error" and code == 1


def test_models_are_listed_without_a_platform(octavo) -> None:
    code, out, _ = octavo("models", "list", "--json")
    (demo,) = [model for model in json.loads(out) if model["name"] == "smollm2-135m"]
    assert code == 0 and demo["fetched"] is False


def test_a_fault_of_ours_is_one_line_too(octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataDir, "secret", lambda self, name: 1 / 0)
    code, out, err = octavo("keys", "show")
    assert (code, out) == (1, "") and "ZeroDivisionError" in err and len(err.strip().splitlines()) == 1
    with pytest.raises(ZeroDivisionError):
        entry.run(["--debug", "keys", "show"])


def test_ctrl_c_is_130(octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: DataDir, name: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(DataDir, "secret", interrupt)
    code, _, err = octavo("keys", "show")
    assert code == 130 and "interrupted" in err


def test_a_setting_that_cannot_be_used_is_named_and_no_fault_of_ours(octavo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_GATEWAY_GRPC_PORT", "abc")
    code, out, err = octavo("status")
    assert (code, out) == (1, "")
    assert err.startswith("error: OCTAVO_GATEWAY_GRPC_PORT: ") and "a fault of octavo" not in err


def test_secrets_are_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    data_dir = DataDir(tmp_path / "data")
    made = data_dir.make_secrets()
    assert made == data_dir.make_secrets() and len(set(made.values())) == 3
    for name in made:
        assert stat.S_IMODE((data_dir.root / "secrets" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((data_dir.root / "secrets").stat().st_mode) == 0o700
    assert made["user_key"].startswith("ok-")


def test_the_data_directory_is_the_given_one_else_the_clones_else_the_users(tmp_path: Path) -> None:
    clone, elsewhere = tmp_path / "clone", tmp_path / "elsewhere"
    (clone / "protos" / "octavo").mkdir(parents=True)
    (clone / "cli").mkdir()
    elsewhere.mkdir()
    (clone / "pyproject.toml").touch()
    outside = elsewhere / "settings.py"
    assert find_data_dir({"OCTAVO_DATA_DIR": "x"}, elsewhere, outside) == elsewhere / "x"
    assert find_data_dir({"OCTAVO_DATA_DIR": "/abs"}, elsewhere, outside) == Path("/abs")
    assert find_data_dir({}, clone / "cli", outside) == clone / ".octavo"
    assert find_data_dir({}, elsewhere, clone / "cli" / "settings.py") == clone / ".octavo"
    assert find_data_dir({"XDG_DATA_HOME": "/share"}, elsewhere, outside) == Path("/share/octavo")
