"""The platform as a user meets it: up, a prompt, a worker that dies, down. One story in order."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from octavo import Client, JobState

pytestmark = pytest.mark.e2e

LONG = "Count from one to two hundred in words, one number a line."
SEEDED = ("--max-tokens", "120", "--temperature", "0", "--ignore-eos")


def _bare() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}


def _client(octavo) -> Client:
    key = (octavo.data_dir / "secrets" / "user_key").read_text().strip()
    return Client(octavo.status()["grpc"], api_key=key)


def _read(stream, ids: list[int]) -> list[int]:
    for chunk in stream:
        assert chunk.first_token == len(ids)
        ids += chunk.token_ids
    return ids


def _options() -> dict:
    return {"messages": [{"role": "user", "content": LONG}], "max_tokens": 120, "temperature": 0.0, "ignore_eos": True}


def test_up_returns_when_the_platform_answers_and_prints_its_addresses(octavo) -> None:
    done = octavo.run("up", "--detach", "--wait", "--workers", "2", "--timeout", "240", timeout_s=260)
    out = done.stdout
    assert done.returncode == 0, f"{out}{done.stderr}\n{octavo.logs()}"
    status = octavo.status()
    assert status["phase"] == "ready" and status["not_ready"] == []
    for address in (*status["grpc"], *status["http"], status["console"]):
        assert address in out
    assert f"starting the platform of {octavo.data_dir}" in done.stderr
    assert "foreground" not in done.stderr
    (line,) = [line.removeprefix("Try:") for line in out.splitlines() if line.startswith("Try:")]
    tried = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=120, env=_bare(), check=False)
    assert tried.returncode == 0 and "Tokyo" in tried.stdout, "what is printed works as it is printed"
    roles = sorted(service["role"] for service in status["services"])
    assert roles == ["console", "gateway", "scheduler", "worker", "worker"]


def test_a_real_prompt_gets_a_right_answer_and_stdout_has_nothing_else(octavo) -> None:
    done = octavo.run("generate", "What is the capital of Japan?", "--temperature", "0", "--max-tokens", "32")
    assert done.returncode == 0, done.stderr
    assert "Tokyo" in done.stdout and "tokens/s" not in done.stdout and "tokens" in done.stderr


def test_workers_and_jobs_are_listed(octavo) -> None:
    workers = json.loads(octavo.ok("workers", "--json"))
    assert sorted(worker["pid"] for worker in workers) == sorted(octavo.pids("worker"))
    for worker in workers:
        assert {"id", "pid", "address", "role", "running", "waiting", "free_blocks", "total_blocks"} <= worker.keys()
        assert worker["free_blocks"] == worker["total_blocks"] > 0
    (job, *_) = json.loads(octavo.ok("jobs", "list", "--json"))
    shown = json.loads(octavo.ok("jobs", "show", job["id"], "--json"))
    assert shown["job"]["state"] == "succeeded" and "Tokyo" in shown["job"]["result"]["text"]
    assert [event["event"] for event in shown["events"]] == ["queued", "assigned", "running", "succeeded"]


def test_the_http_api_answers_with_the_same_key(octavo) -> None:
    key = octavo.ok("keys", "show").strip()
    request = urllib.request.Request(
        f"http://{octavo.status()['http'][0]}/v1/models", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["smollm2-135m"]


README = (Path(__file__).parents[2] / "sdk" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_every_example_of_the_sdks_readme_runs_as_it_stands(octavo, code: str) -> None:
    key = octavo.ok("keys", "show").strip()
    environ = {**octavo.environ(), "OCTAVO_ADDRESS": octavo.status()["grpc"][0], "OCTAVO_API_KEY": key}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_a_second_up_says_that_it_runs_already(octavo) -> None:
    out = octavo.ok("up", "--detach", "--wait")
    assert octavo.status()["grpc"][0] in out


@pytest.mark.parametrize("words", [("--workers", "2"), ("--workers", "2", "--model", "smollm2-135m"), ()])
def test_the_same_options_again_are_no_failure(octavo, words: tuple[str, ...]) -> None:
    octavo.ok("up", "--detach", *words)


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        (("--workers", "3"), {}, "--workers is 2, not 3"),
        (("--model", "foo"), {}, "--model is smollm2-135m, not foo"),
        (("--no-console",), {}, "--no-console"),
        ((), {"OCTAVO_WORKER_KV_BYTES": "1"}, "OCTAVO_WORKER_KV_BYTES"),
    ],
)
def test_other_options_on_a_running_platform_are_refused(octavo, words, variables, says) -> None:
    command = [sys.executable, "-m", "octavo_cli", "up", "--detach", "--wait", *words]
    environ = {**octavo.environ(), **variables}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and f"--data-dir {octavo.data_dir} down`" in done.stderr
    assert octavo.status()["phase"] == "ready"


def test_a_stream_goes_on_with_the_next_token_when_its_worker_is_killed(octavo) -> None:
    with _client(octavo) as client:
        undisturbed = _read(client.generate(**_options()), [])
        stream, ids = client.generate(**_options()), []
        chunks = iter(stream)
        while len(ids) < 10:
            ids += next(chunks).token_ids
        job = client.jobs.get(stream.job_id)
        (worker,) = [w for w in client.workers() if w.id == job.worker_id]
        os.kill(worker.pid, signal.SIGKILL)
        _read(chunks, ids)
        assert stream.result is not None and len(ids) == 120
        assert ids == undisturbed, f"differs first at {next(i for i in range(120) if ids[i] != undisturbed[i])}"
        assert client.jobs.get(stream.job_id).state is JobState.SUCCEEDED


def test_a_stream_survives_its_gateway_and_the_supervisor_brings_it_back(octavo) -> None:
    with _client(octavo) as client:
        stream, ids = client.generate(**_options()), []
        chunks = iter(stream)
        while len(ids) < 10:
            ids += next(chunks).token_ids
        (gateway,) = octavo.pids("gateway")
        os.kill(gateway, signal.SIGKILL)
        _read(chunks, ids)
        assert stream.result is not None and len(ids) == 120
    octavo.ok("up", "--detach", "--wait")
    assert octavo.pids("gateway") != [gateway]


def test_a_database_that_dies_is_started_again_and_a_stream_only_waits(octavo) -> None:
    pid_file = octavo.data_dir / "pg" / "postmaster.pid"
    before = int(pid_file.read_text().split()[0])
    with _client(octavo) as client:
        undisturbed = _read(client.generate(**_options()), [])
        stream, ids = client.generate(**_options()), []
        chunks = iter(stream)
        while len(ids) < 10:
            ids += next(chunks).token_ids
        os.kill(before, signal.SIGKILL)
        assert _read(chunks, ids) == undisturbed
        # Said after the commit: the server is back.
        assert stream.result is not None
        assert client.jobs.get(stream.job_id).state is JobState.SUCCEEDED
    assert int(pid_file.read_text().split()[0]) != before
    assert "Tokyo" in octavo.ok("generate", "What is the capital of Japan?", "--temperature", "0", "--max-tokens", "32")


def test_ctrl_c_in_generate_cancels_the_job(octavo) -> None:
    with octavo.start("generate", LONG, "--max-tokens", "1500", "--ignore-eos") as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err
    (job, *_) = json.loads(octavo.ok("jobs", "list", "--json"))
    code = octavo.run("jobs", "watch", job["id"], "--timeout", "10").returncode
    assert code == 1
    assert json.loads(octavo.ok("jobs", "show", job["id"], "--json"))["job"]["state"] == "cancelled"


def test_down_leaves_no_process(octavo) -> None:
    assert len(octavo.processes()) > 6
    done = octavo.run("down")
    assert done.returncode == 0 and f"stopping the platform of {octavo.data_dir} (pid " in done.stderr
    assert octavo.processes() == []
    assert octavo.run("status").returncode == 1
    asked = octavo.run("generate", "x")
    assert asked.returncode == 1 and f"No platform is running in {octavo.data_dir}" in asked.stderr


def test_an_interrupted_up_says_that_the_platform_goes_on_and_what_stops_it(octavo) -> None:
    with octavo.start("up", "--detach", "--wait", "--no-console") as waiting:
        assert waiting.stderr is not None
        # The first line says what is started, the second what the supervisor does: it lives.
        assert waiting.stderr.readline() and waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (130, "")
    assert f"the platform of {octavo.data_dir} goes on in the background" in err and "Traceback" not in err
    (line,) = re.findall(r"`([^`]* down)`", err)
    assert octavo.processes() != []
    done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=120, env=_bare(), check=False)
    assert done.returncode == 0 and octavo.processes() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_down_cleans_up_after_a_supervisor_that_was_killed(octavo) -> None:
    octavo.ok("up", "--detach", "--no-console", timeout_s=120)
    supervisor = octavo.status()["supervisor_pid"]
    psutil.Process(supervisor).kill()
    octavo.ok("down")
    assert octavo.processes() == []


def test_a_port_in_use_is_one_line_with_a_hint_and_leaves_nothing(octavo) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ = {**octavo.environ(), "OCTAVO_GATEWAY_GRPC_PORT": str(taken.getsockname()[1])}
        done = subprocess.run(
            [sys.executable, "-m", "octavo_cli", "up", "--detach", "--wait"],
            env=environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "OCTAVO_GATEWAY_GRPC_PORT" in done.stderr.splitlines()[-1]
    assert octavo.processes() == []
