"""The figures of a job that moved: those that its caller saw, each counted once."""

from __future__ import annotations

import asyncio
import re

import pytest
from fakes.tiny_worker import TinyWorker, read

from octavo_common.jobs.model import Resumption
from octavo_common.jobs.spec import GenerationResult, UsageRecord

PROMPT = tuple(range(1, 12))
SLOW_S = 0.02


@pytest.fixture
def make(pg_dsn, bundle):
    return lambda **kwargs: TinyWorker(pg_dsn, bundle, **kwargs)


async def some(call, num_tokens: int) -> list[int]:
    got: list[int] = []
    async for message in call:
        got += message.token_ids
        if len(got) >= num_tokens:
            return got
    raise AssertionError("the stream ended early")


async def counts(worker: TinyWorker) -> dict[str, int]:
    """How many values each histogram of the worker has."""
    host, _, port = worker.process.metrics_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return {name: int(float(n)) for name, n in re.findall(r"^octavo_(\w+)_count\{.*\} (\S+)$", text, re.M)}


async def moved(worker: TinyWorker, first_token_ago_s: float | None) -> tuple[UsageRecord, UsageRecord, float]:
    """Usage of a job that lost its worker for half a second, of its stream too, and its age at that loss."""
    worker.executor.step_s = SLOW_S
    job = await worker.start(PROMPT, 30)
    got = await some(worker.stream(job), 5)
    resumed = await worker.streams.resume(
        job.id,
        Resumption(
            owner=worker.gateway_id, fence=job.fence, emitted_ids=tuple(got), first_token_ago_s=first_token_ago_s
        ),
    )
    assert resumed is not None
    event = (await worker.jobs.events(job.id, tenant=None))[-1]
    await asyncio.sleep(0.5)
    again = await worker.assign(job)
    _, _, end = await read(worker.stream(again, prefix=got))
    row = await worker.ended(job)
    usage = GenerationResult.from_json(dict(row.result)).usage
    assert usage.queue_s == pytest.approx((row.started_at - row.created_at).total_seconds())
    assert usage.num_losses == end.usage.num_losses == 1
    return usage, end.usage, (event.time - row.created_at).total_seconds()


async def test_first_start_and_first_token_are_those_before_the_loss_and_count_once(make):
    async with make() as worker:
        usage, sent, lost_s = await moved(worker, 0.05)
        assert usage.queue_s < usage.time_to_first_token_s < lost_s
        # The rest took the outage and more.
        assert usage.total_s > lost_s + 0.5
        told_s = sent.time_to_first_token.ToTimedelta().total_seconds()
        assert told_s == pytest.approx(usage.time_to_first_token_s, abs=1e-5)
        found = await counts(worker)
        names = ("queue_time", "prefill_time", "decode_time", "inference_time")
        assert {found[f"request_{name}_seconds"] for name in names} == {1}
        assert found["time_to_first_token_seconds"] == found["e2e_request_latency_seconds"] == 1


async def test_a_first_token_that_nobody_remembers_is_left_out(make):
    async with make() as worker:
        usage, sent, _ = await moved(worker, None)
        assert usage.time_to_first_token_s is None and not sent.HasField("time_to_first_token")
        assert usage.total_s is not None and sent.HasField("total_time") and sent.HasField("queue_time")
        found = await counts(worker)
        # The one of the first attempt, at this worker; and neither time that begins or ends with it.
        assert found["time_to_first_token_seconds"] == found["request_inference_time_seconds"] == 1
        assert "request_prefill_time_seconds" not in found and "request_decode_time_seconds" not in found


async def test_a_worker_that_leaves_hands_the_time_of_the_first_token_on(make):
    async with make() as worker:
        worker.executor.step_s = SLOW_S
        job = await worker.start(PROMPT, 60)
        await some(worker.stream(job), 3)
        worker.lifecycle.stop("SIGTERM")
        assert await worker.task == 0
        event = (await worker.jobs.events(job.id, tenant=None))[-1]
        row = await worker.get(job)
        assert (event.event, event.details["why"]) == ("released", "worker_left")
        assert event.details["worker"] == str(worker.id)
        left_s = (event.time - row.created_at).total_seconds()
        assert (row.started_at - row.created_at).total_seconds() <= float(event.details["first_token_s"]) <= left_s
