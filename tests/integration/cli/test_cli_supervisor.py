"""A supervisor with processes that only sleep: what it says when it cannot look at them, or not write it down."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from octavo_cli.datadir import DataDir
from octavo_cli.settings import CliSettings
from octavo_cli.supervisor import health, state, supervisor
from octavo_cli.supervisor.plan import ServiceSpec, UpOptions
from octavo_cli.supervisor.prepare import Prepared
from octavo_common.clock import SystemClock

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


async def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


class Looks:
    """Stands for the looks at the services: they succeed, or raise what they are told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def __call__(self, keepers, database) -> None:
        if self.error is not None:
            raise self.error
        for keeper in keepers:
            keeper.tell("")


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[DataDir, Looks]]:
    looks, data_dir = Looks(), DataDir(tmp_path / "data")
    data_dir.make()
    sleeper = ServiceSpec(name="worker-0", role="worker", argv=(sys.executable, "-c", "import time; time.sleep(60)"))
    prepared = Prepared(database_url=NOWHERE, embedded=None, model_path=tmp_path, model_name="m")
    monkeypatch.setattr(health, "look", looks)
    monkeypatch.setattr(supervisor, "plan", lambda options, site: [sleeper])
    monkeypatch.setattr(supervisor, "prepare", lambda *_: prepared)
    one = supervisor.Supervisor(
        data_dir=data_dir,
        settings=CliSettings(data_dir=data_dir.root, database_url=NOWHERE, grpc_port=0, http_port=0),
        environ=dict(os.environ),
        options=UpOptions(console=False),
        clock=SystemClock(),
    )
    task = asyncio.create_task(one.run())
    yield data_dir, looks
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 30) == 0
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


def _said(data_dir: DataDir) -> state.UpState | None:
    return state.read(data_dir.state_file)


async def test_a_look_that_raises_is_said_until_one_succeeds(running: tuple[DataDir, Looks]) -> None:
    data_dir, looks = running
    looks.error = RuntimeError("no thread can be started")
    await _until(lambda: (up := _said(data_dir)) and up.trouble)
    up = _said(data_dir)
    assert up is not None and up.phase == "starting"
    assert up.trouble.startswith("cannot look at the services, see ") and up.not_ready == [up.trouble]
    assert [(s.state, s.reason) for s in up.services] == [("unknown", "cannot be looked at")]
    looks.error = None
    await _until(lambda: (up := _said(data_dir)) and up.phase == "ready")
    up = _said(data_dir)
    assert up is not None and up.trouble == "" and up.not_ready == []


async def test_a_state_that_cannot_be_written_ends_nothing_and_is_written_later(
    running: tuple[DataDir, Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir, looks = running
    looks.error = RuntimeError("not yet")
    await _until(lambda: (up := _said(data_dir)) and up.trouble)

    def full(path: Path, up: state.UpState) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(state, "write", full)
        looks.error = None
        await asyncio.sleep(1.5)
        up = _said(data_dir)
        assert up is not None and up.trouble
    # An idle supervisor looks every few seconds.
    await _until(lambda: (up := _said(data_dir)) and up.phase == "ready")


async def test_what_a_platform_runs_with_is_written_down(running: tuple[DataDir, Looks]) -> None:
    data_dir, _ = running
    await _until(lambda: _said(data_dir))
    up = _said(data_dir)
    assert up is not None and (up.options["workers"], up.options["console"]) == (1, False)
    assert up.options["variables"]["OCTAVO_GATEWAY_GRPC_PORT"] == "0"
