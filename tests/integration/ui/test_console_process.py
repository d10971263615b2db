"""The console as a process, without a platform: it sleeps until somebody comes, and ends when told."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

START_S = 60.0


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def console(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    # A file of the folder that it is started in must not make it show what an operator's page keeps to itself.
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text('[server]\nport = 1\naddress = "0.0.0.0"\n')
    env = {**os.environ, "OCTAVO_CONSOLE_HOST": "127.0.0.1", "OCTAVO_CONSOLE_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-m", "octavo_ui"], env=env, cwd=tmp_path) as process:
        try:
            end_s = time.monotonic() + START_S
            while _get(port, "/_stcore/health") is None:
                assert process.poll() is None and time.monotonic() < end_s
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


def _get(port: int, path: str) -> tuple[int, bytes] | None:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except OSError:
        return None


def _wakes(pid: int) -> int:
    lines = [
        line for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "status").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts of /proc")
def test_a_console_that_nobody_looks_at_sleeps(console: subprocess.Popen[bytes]) -> None:
    time.sleep(2)
    before = _wakes(console.pid)
    time.sleep(5)
    # `streamlit run` wakes 350 times.
    assert _wakes(console.pid) - before <= 5


def test_the_console_serves_its_page(console: subprocess.Popen[bytes], port: int) -> None:
    answer = _get(port, "/")
    assert answer is not None and answer[0] == 200 and b"<title>" in answer[1]


def _visit(port: int, path: str) -> tuple[bool, str, str]:
    """As a browser that opens a path: whether there was no such page, and path and title of what is shown at last."""
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ClientState_pb2 import ClientState
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
    from websockets.sync.client import connect

    url, missing, shown, title = f"ws://127.0.0.1:{port}/_stcore/stream", False, "", ""
    with connect(url, subprotocols=["streamlit"], proxy=None, max_size=None) as socket:  # pyright: ignore[reportArgumentType] - a plain str
        socket.send(BackMsg(rerun_script=ClientState(page_name=path)).SerializeToString())
        while True:
            message = ForwardMsg.FromString(socket.recv(timeout=30))  # pyright: ignore[reportArgumentType] - always bytes
            missing |= message.HasField("page_not_found")
            if message.HasField("navigation"):
                pages = {page.page_script_hash: page.url_pathname for page in message.navigation.app_pages}
                shown = pages[message.navigation.page_script_hash]
            title = message.delta.new_element.heading.body or title
            # The page at / ends without a title, to be followed by another.
            if message.HasField("script_finished") and title:
                return missing, shown, title


@pytest.mark.parametrize(
    ("path", "shown"),
    [("", "prompt"), *((name, name) for name in ("prompt", "jobs", "workers", "engine", "builds", "plan"))],
)
@pytest.mark.usefixtures("console")
def test_every_page_has_a_path_of_its_own_also_for_who_opens_it_first(port: int, path: str, shown: str) -> None:
    assert _visit(port, path) == (False, shown, shown.capitalize())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_console_ends_in_good_order(console: subprocess.Popen[bytes], number: signal.Signals) -> None:
    console.send_signal(number)
    assert console.wait(timeout=20) == 0


def test_the_console_ends_beside_a_page_that_is_open(console: subprocess.Popen[bytes], port: int) -> None:
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}/_stcore/stream", subprotocols=["streamlit"], proxy=None):  # pyright: ignore[reportArgumentType] - a plain str
        console.send_signal(signal.SIGTERM)
        assert console.wait(timeout=20) == 0


def test_a_port_in_use_is_an_exit_code(console: subprocess.Popen[bytes], port: int, tmp_path: Path) -> None:
    env = {**os.environ, "OCTAVO_CONSOLE_HOST": "127.0.0.1", "OCTAVO_CONSOLE_PORT": str(port)}
    second = subprocess.run([sys.executable, "-m", "octavo_ui"], env=env, cwd=tmp_path, check=False, timeout=60)
    assert second.returncode == 3
