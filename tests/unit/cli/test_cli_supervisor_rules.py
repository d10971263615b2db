"""The rules of the supervisor: what is started, with what, and when again."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_cli.supervisor import logs, ports, state
from octavo_cli.supervisor.plan import MARK, Site, UpOptions, plan, thread_env, worker_threads
from octavo_cli.supervisor.restarts import History, RestartPolicy
from octavo_cli.supervisor.state import ServiceState, UpState


def _site(**changes: object) -> Site:
    values: dict = {
        "python": "python",
        "data_dir": Path("/data"),
        "host": "127.0.0.1",
        "database_url": "postgresql://u:p@h/d",
        "num_cores": 8,
        "gateway_ports": ((50051, 8080), (50052, 8081)),
        "console_port": 8501,
        "model_path": "/m.gguf",
        "model_name": "m",
    }
    return Site(**{**values, **changes})


def test_a_platform_has_what_was_asked_for_and_every_process_carries_the_mark() -> None:
    specs = plan(UpOptions(workers=3, gateways=2, schedulers=2), _site())
    assert [spec.name for spec in specs] == [
        "scheduler-0", "scheduler-1", "gateway-0", "gateway-1", "worker-0", "worker-1", "worker-2", "console-0",
    ]  # fmt: skip
    assert all(spec.env[MARK] == "/data" and spec.env["OCTAVO_DATA_DIR"] == "/data" for spec in specs)
    assert [spec.address for spec in specs if spec.role == "gateway"] == ["127.0.0.1:50051", "127.0.0.1:50052"]
    worker = specs[4].env
    assert (worker["OMP_NUM_THREADS"], worker["OMP_WAIT_POLICY"], worker["OCTAVO_WORKER_MODEL"]) == (
        "2", "PASSIVE", "/m.gguf",
    )  # fmt: skip


def test_edge_builders_come_only_when_they_are_asked_for() -> None:
    assert not [spec for spec in plan(UpOptions(), _site()) if spec.role == "edge_builder"]
    builders = [spec for spec in plan(UpOptions(edge_builders=2), _site()) if spec.role == "edge_builder"]
    assert [spec.name for spec in builders] == ["edge-builder-0", "edge-builder-1"]
    assert builders[0].argv[1:] == ("-m", "octavo_edge", "serve")
    assert (builders[0].env[MARK], builders[0].env["OCTAVO_DATA_DIR"]) == ("/data", "/data")


def test_the_console_gets_the_gateways_but_neither_the_database_nor_another_key() -> None:
    console = plan(UpOptions(), _site(host="0.0.0.0"))[-1]
    assert console.env["OCTAVO_ADDRESS"] == "127.0.0.1:50051,127.0.0.1:50052"
    assert "OCTAVO_DATABASE_URL" not in console.env and console.env["OCTAVO_API_KEY"] == ""
    assert console.env["OCTAVO_CONSOLE_HOST"] == "127.0.0.1" and console.http_address == "127.0.0.1:8501"
    assert not [s for s in plan(UpOptions(console=False), _site()) if s.role == "console"]


@given(st.integers(1, 256), st.integers(1, 64))
def test_workers_never_take_more_cores_than_there_are_unless_they_are_more(cores: int, workers: int) -> None:
    share = worker_threads(cores, workers)
    assert share >= 1 and (share * workers <= cores or share == 1)


def test_a_given_number_of_threads_wins() -> None:
    worker = plan(UpOptions(console=False), _site(worker_threads=5))[-1]
    assert set(thread_env(5).items()) <= set(worker.env.items())


def test_a_process_that_keeps_ending_early_is_reported_and_tried_only_seldom() -> None:
    policy, history, delays = RestartPolicy(), History(), []
    for _ in range(6):
        history = history.after_end(0.5, policy, was_ready=True)
        delays.append(history.delay_s(policy))
    assert delays == [0.1, 0.2, 0.4, 0.8, 60.0, 60.0]
    assert history.is_crashing(policy) and history.num_restarts == 6


def test_a_process_with_a_ready_peer_leaves_it_the_machine_for_a_while() -> None:
    policy, history = RestartPolicy(), History().after_end(3600.0, RestartPolicy(), was_ready=True)
    assert history.delay_s(policy, has_peer=True) == policy.peer_s > history.delay_s(policy)
    for _ in range(policy.max_early):
        history = history.after_end(0.5, policy, was_ready=True)
    assert history.delay_s(policy, has_peer=True) == policy.seldom_s


def test_a_process_that_did_its_work_for_a_while_starts_with_a_clean_slate() -> None:
    policy, history = RestartPolicy(), History()
    for _ in range(4):
        history = history.after_end(0.5, policy, was_ready=True)
    history = history.after_end(3600.0, policy, was_ready=True)
    assert history.delay_s(policy) == policy.base_s and not history.is_crashing(policy)


def test_a_process_that_loads_for_long_and_then_ends_has_not_done_its_work() -> None:
    policy, history = RestartPolicy(), History()
    for _ in range(policy.max_early):
        history = history.after_end(3600.0, policy, was_ready=False)
    assert history.is_crashing(policy)


def _up() -> UpState:
    service = ServiceState(
        name="gateway-0", role="gateway", state="not ready", pid=1, started=2, address="a:1", http_address="a:2",
        restarts=0, reason="is late", log="x",
    )  # fmt: skip
    return UpState(pid=3, started=4, phase="starting", services=(service,), options={"workers": 1})


def test_the_state_survives_the_file(tmp_path: Path) -> None:
    state.write(tmp_path / "up.json", _up())
    assert state.read(tmp_path / "up.json") == _up()
    assert _up().not_ready == ["gateway-0: is late"] and _up().grpc_addresses == ["a:1"]
    assert list(tmp_path.iterdir()) == [tmp_path / "up.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"services": [{"x": 1}]}', '{"services": 3}'])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "up.json").write_text(content)
    assert state.read(tmp_path / "up.json") is None
    assert state.read(tmp_path / "other.json") is None


def test_a_log_that_grew_too_long_keeps_its_file_and_moves_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("ab") as writer:
        writer.write(b"x" * 100)
        writer.flush()
        assert not logs.rotate(path, max_bytes=100)
        writer.write(b"y")
        writer.flush()
        assert logs.rotate(path, max_bytes=100)
        writer.write(b"later\n")
    assert path.read_bytes() == b"later\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 100 + b"y"


def test_the_last_words_are_the_last_line_that_says_something(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert logs.last_words(path) == ""
    path.write_text("Traceback\nValueError: no\n\n")
    assert logs.last_words(path) == "ValueError: no"
    path.write_text(json.dumps({"event": "start.failed", "error": "no model", "level": "error"}) + "\n")
    assert logs.last_words(path) == "start.failed: no model"
    path.write_text(json.dumps({"event": "x", "exception": [{"exc_type": "OSError", "exc_value": "full"}]}))
    assert logs.last_words(path) == "x: OSError: full"


def test_the_first_port_is_the_one_asked_for_and_further_ones_are_free() -> None:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        one.listen()
        used = one.getsockname()[1]
        with pytest.raises(ports.PortInUse) as caught:
            ports.choose("127.0.0.1", used, 1, variable="OCTAVO_X", what="thing", taken=set())
        assert f"port {used} for the thing is in use" in caught.value.message and "OCTAVO_X" in caught.value.hint
        two.bind(("127.0.0.1", 0))
        free = two.getsockname()[1]
        two.close()
        chosen = ports.choose("127.0.0.1", free, 3, variable="V", what="w", taken={free + 1})
    assert chosen[0] == free and len(set(chosen)) == 3 and free + 1 not in chosen


def test_port_zero_is_any_free_one() -> None:
    taken: set[int] = set()
    chosen = ports.choose("127.0.0.1", 0, 3, variable="V", what="w", taken=taken)
    assert len(set(chosen)) == 3 and set(chosen) == taken
