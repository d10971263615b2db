"""The real images under compose: they answer, recover from a kill, and give nothing to a stranger."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING

import docker
import pytest

import octavo

if TYPE_CHECKING:
    from .conftest import Stack

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


def test_images_run_as_nobody_special_and_check_their_health(engine: docker.DockerClient, images: list[str]) -> None:
    for name in images:
        config = engine.images.get(name).attrs["Config"]
        assert config["User"] == "octavo", name
        assert config.get("Healthcheck") or name.startswith("octavo-cli"), name


def test_only_the_worker_has_torch(engine: docker.DockerClient, images: list[str]) -> None:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    for name in images:
        status = engine.containers.run(name, entrypoint=["python", "-c", code], detach=True)
        try:
            has_torch = status.wait()["StatusCode"] == 1
        finally:
            status.remove(force=True)
        assert has_torch == name.startswith("octavo-worker"), name


def test_a_prompt_is_answered_through_every_container(stack: Stack) -> None:
    with octavo.Client(stack.grpc, api_key=stack.key("user_key")) as client:
        messages = [{"role": "user", "content": "What is the capital of Japan?"}]
        stream = client.generate(messages=messages, max_tokens=32, temperature=0)
        text = "".join(chunk.text for chunk in stream)
        assert "Tokyo" in text
        assert len(client.workers()) == 2


def test_a_stranger_gets_nothing(stack: Stack) -> None:
    with octavo.Client(stack.grpc, api_key="ok-wrong") as client, pytest.raises(octavo.UnauthenticatedError):
        client.models()


def test_a_killed_worker_container_interrupts_no_stream(stack: Stack, engine: docker.DockerClient) -> None:
    prompt = "Count from one to one hundred in words:"
    with octavo.Client(stack.grpc, api_key=stack.key("user_key")) as client:
        undisturbed = client.generate(prompt, max_tokens=160, temperature=0, ignore_eos=True)
        expected = [t for chunk in undisturbed for t in chunk.token_ids]
        stream = client.generate(prompt, max_tokens=160, temperature=0, ignore_eos=True)
        got: list[int] = []
        killed = None
        for chunk in stream:
            got += chunk.token_ids
            if killed is None and len(got) >= 20:
                job = client.jobs.get(stream.job_id)
                host = next(w.host for w in client.workers() if w.id == job.worker_id)
                killed = engine.containers.get(host)
                killed.kill("SIGKILL")
        assert killed is not None, "the stream ended before the kill"
        assert got == expected


def test_the_scheduler_comes_back_after_a_kill(stack: Stack) -> None:
    stack.compose("kill", "--signal", "KILL", "scheduler")
    stack.compose("up", "--detach", "--wait", "scheduler", "worker", "--scale", "worker=2")
    with octavo.Client(stack.grpc, api_key=stack.key("user_key")) as client:
        assert "".join(c.text for c in client.generate("Hello", max_tokens=4, temperature=0)) != ""


def test_metrics_and_console_answer(stack: Stack) -> None:
    with urllib.request.urlopen(f"{stack.http}/metrics", timeout=10) as r:
        assert b"octavo_" in r.read()
    with urllib.request.urlopen(f"{stack.console}/_stcore/health", timeout=10) as r:
        assert r.read() == b"ok"


def test_containers_leave_on_sigterm(stack: Stack) -> None:
    began = time.monotonic()
    stack.compose("stop", "--timeout", "25", "gateway", "scheduler")
    assert time.monotonic() - began < 20
    stack.compose("up", "--detach", "--wait")
