"""What `octavo up` refuses, waits for, and says; and what a supervisor says that cannot look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo_cli import __main__ as entry
from octavo_cli.commands import platform
from octavo_cli.datadir import DataDir
from octavo_cli.supervisor import launch, state
from octavo_cli.supervisor.plan import UpOptions, differences
from octavo_cli.supervisor.state import ServiceState, UpState

GIVEN = {"workers", "gateways", "schedulers", "model", "no_console"}
RUNNING = {**UpOptions(workers=2, model="m").to_json(), "variables": {"OCTAVO_HOST": "127.0.0.1"}}


def test_the_same_options_again_are_no_difference_and_neither_is_what_was_not_said() -> None:
    same = {"OCTAVO_HOST": "127.0.0.1"}
    assert differences(UpOptions(workers=2, model="m"), GIVEN, same, RUNNING) == []
    assert differences(UpOptions(), {"detach", "wait"}, {}, RUNNING) == []


@pytest.mark.parametrize(
    ("wanted", "said", "variables", "expected"),
    [
        (UpOptions(workers=3), {"workers"}, {}, "--workers is 2, not 3"),
        (UpOptions(workers=1), {"workers"}, {}, "--workers is 2, not 1"),
        (UpOptions(gateways=2), {"gateways"}, {}, "--gateways is 1, not 2"),
        (UpOptions(schedulers=2), {"schedulers"}, {}, "--schedulers is 1, not 2"),
        (UpOptions(edge_builders=1), {"edge_builders"}, {}, "--edge-builders is 0, not 1"),
        (UpOptions(model="foo"), {"model"}, {}, "--model is m, not foo"),
        (UpOptions(console=False), {"no_console"}, {}, "it has a console, and --no-console was given"),
        (UpOptions(), set(), {"OCTAVO_HOST": "0.0.0.0"}, "OCTAVO_HOST is 127.0.0.1, not 0.0.0.0"),
        (UpOptions(), set(), {"OCTAVO_WORKER_X": "1"}, "OCTAVO_WORKER_X is not set, not 1"),
    ],
)
def test_every_option_that_is_asked_for_otherwise_is_named(wanted, said, variables, expected) -> None:
    assert differences(wanted, said, variables, RUNNING) == [expected]


def test_a_supervisor_that_has_written_down_less_refuses_less() -> None:
    assert differences(UpOptions(workers=3, model="x"), GIVEN, {"OCTAVO_HOST": "::"}, {}) == []


class Time:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


def _service(name: str, **changes: object) -> ServiceState:
    values: dict = {
        "name": name, "role": "worker", "state": "starting", "pid": 1, "started": 2, "address": "", "http_address": "",
        "restarts": 0, "reason": "is loading the model", "log": f"/logs/{name}.log",
    }  # fmt: skip
    return ServiceState(**{**values, **changes})


@pytest.fixture
def held(tmp_path: Path):
    """A data directory whose lock is held, as by a supervisor that lives."""
    data_dir = DataDir(tmp_path / "data")
    data_dir.make()
    lock = state.UpLock(data_dir)
    assert lock.take()
    yield data_dir
    lock.release()


def _wait(data_dir: DataDir, up: UpState | None, timeout_s: float) -> tuple[str, str, list[float]]:
    if up is not None:
        state.write(data_dir.state_file, up)
    waited: list[float] = []
    with pytest.raises(launch.StartFailed) as caught:
        launch.wait(
            data_dir, timeout_s=timeout_s, clock=Time(), on_change=lambda up: None, on_wait=waited.append  # type: ignore[arg-type]
        )  # fmt: skip
    return caught.value.message, caught.value.hint, waited


def test_a_wait_that_takes_too_long_says_what_was_not_ready_and_where_its_log_is(held: DataDir) -> None:
    up = UpState(pid=1, started=2, phase="starting", services=(_service("worker-0"),), log="/logs/up.log")
    message, hint, waited = _wait(held, up, 100.0)
    assert message == "the platform is not ready after 100 s: worker-0: is loading the model"
    assert hint.startswith("see /logs/worker-0.log;") and f"--data-dir {held.root} down" in hint
    assert [round(seconds, -1) for seconds in waited] == [30, 60, 90]


def test_a_supervisor_that_says_nothing_is_waited_for_no_longer(held: DataDir) -> None:
    message, hint, _ = _wait(held, None, 5.0)
    assert "says nothing" in message and str(held.up_log) in hint


def test_a_supervisor_that_cannot_look_says_so_instead_of_what_it_saw_last(held: DataDir) -> None:
    trouble = "cannot look at the services, see /logs/up.log"
    services = tuple(state.unseen(service) for service in (_service("a"), _service("b", pid=None, state="waiting")))
    assert [(s.state, s.reason) for s in services] == [
        ("unknown", "cannot be looked at"),
        ("waiting", "is loading the model"),
    ]
    up = UpState(pid=1, started=2, phase="starting", services=services, trouble=trouble, log="/logs/up.log")
    assert up.not_ready == [trouble]
    message, hint, _ = _wait(held, up, 5.0)
    assert message.endswith(trouble) and "loading" not in message and hint.startswith("see /logs/up.log;")


def test_a_state_of_an_older_supervisor_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text('{"pid": 1, "started": 2, "phase": "ready", "services": []}')
    found = state.read(tmp_path / "up.json")
    assert found is not None and (found.trouble, found.log) == ("", "")


def test_up_says_that_it_stays_and_how_to_leave_it_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What follows is the platform itself.
    monkeypatch.setattr(platform, "_run_here", lambda context, options: 0)
    assert entry.run(["--data-dir", str(tmp_path / "data"), "up"]) == 0
    told = " ".join(capfd.readouterr().err.split())
    assert "stays in the foreground until Ctrl-C" in told
    # The command as it must be typed: with what this one was given.
    words = re.search("`([^`]*octavo [^`]*--detach)`", told)
    assert words is not None and str(tmp_path / "data") in words[1]
