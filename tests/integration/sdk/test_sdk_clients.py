"""Both clients against real gRPC servers that misbehave by script: no token is lost or repeated."""

from __future__ import annotations

import asyncio
import gc
import threading

import grpc
import pytest
from fakes.far_away import far_away
from scripted_gateway import TOKENS, text_of

import octavo
from octavo.v1 import jobs_pb2

UNAVAILABLE, INTERNAL = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


def _ids(chunks: list[octavo.Chunk]) -> list[int]:
    return [i for chunk in chunks for i in chunk.token_ids]


def _whole(chunks: list[octavo.Chunk], stream: octavo.TokenStream, error: object) -> None:
    assert error is None
    assert _ids(chunks) == TOKENS and stream.text == text_of(TOKENS)
    assert stream.result is not None and stream.result.token_ids == tuple(TOKENS)
    assert stream.result.finish_reason is octavo.FinishReason.LENGTH and stream.result.usage.seed == 5
    assert not stream.cancelled


def test_an_undisturbed_stream_arrives_whole_with_the_key_in_its_metadata(both, gateway, platform) -> None:
    one = gateway("a", ["accept", (0, 1), (1, 5), (5, 8), "finish"])
    _whole(*both.read(one.address))
    assert platform.calls == [("a", "Generate")]
    assert one.metadata[0]["authorization"] == "Bearer ok-1"


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param([["accept", (0, 3), UNAVAILABLE]], id="break after tokens"),
        pytest.param([["accept", (0, 3), INTERNAL]], id="reset after tokens"),
        pytest.param([["accept", (0, 3), "end"]], id="early end"),
        pytest.param([["accept", UNAVAILABLE]], id="break before tokens"),
        pytest.param([[UNAVAILABLE]], id="break before accepted"),
        pytest.param([["accept", (0, 3), UNAVAILABLE], [UNAVAILABLE], ["accept", (3, 4), UNAVAILABLE]], id="often"),
        pytest.param([["accept", (0, 8), UNAVAILABLE]], id="break before finished"),
        pytest.param([["accept", (0, 3), (0, 3), (1, 2), (3, 8), "finish"]], id="repeated chunks"),
        pytest.param([["accept", (0, 3), (2, 8), "finish"]], id="overlapping chunks"),
        pytest.param([["accept", (0, 3), (5, 8), "finish"]], id="missing chunks"),
        pytest.param([["accept", (0, 3), UNAVAILABLE], [(0, 3), (3, 8), "finish"]], id="resumed from the start"),
    ],
)
def test_a_stream_that_breaks_arrives_whole(both, gateway, platform, scripts) -> None:
    _whole(*both.read(gateway("a", *scripts).address))
    assert len(platform.jobs) == 1 and not platform.cancelled.is_set()


def test_another_gateway_takes_over_when_one_dies(both, gateway, platform) -> None:
    first = gateway("a", ["accept", (0, 2), "hang"])
    second = gateway("b")
    timer = threading.Timer(0.5, first.stop)
    timer.start()
    _whole(*both.read(f"{first.address},{second.address}"))
    timer.join()
    assert platform.calls == [("a", "Generate"), ("b", "ResumeGeneration")]
    assert platform.resumed_with == [TOKENS[:2]]


def test_a_gateway_that_comes_back_at_the_same_address_goes_on(both, gateway, platform) -> None:
    one = gateway("a", ["accept", (0, 2), "hang"])
    address = one.address

    def restart() -> None:
        one.stop()
        one.start(address)

    timer = threading.Timer(0.3, restart)
    timer.start()
    _whole(*both.read(address))
    timer.join()


def test_a_gateway_far_away_or_busy_is_reached_at_the_first_attempt(both, gateway) -> None:
    """Who connects waits for the server's first words, and those of a busy one take a while."""
    with far_away(gateway("a").address, delay_s=0.4) as address:
        _whole(*both.read(address, retry=octavo.RetryPolicy(max_attempts=1)))


def test_a_dead_first_address_is_skipped(both, gateway) -> None:
    dead = gateway("a")
    dead.stop()
    _whole(*both.read(f"{dead.address},{gateway('b').address}"))


def test_no_gateway_at_all_is_an_error_with_a_hint_soon(both, gateway) -> None:
    dead = gateway("a")
    dead.stop()
    chunks, _, error = both.read(dead.address)
    assert chunks == [] and isinstance(error, octavo.UnavailableError) and "octavo up" in error.hint


def test_a_platform_that_stays_away_ends_the_stream_with_its_job_id(both, gateway, platform) -> None:
    _, stream, error = both.read(gateway("a", ["accept", (0, 2)], *[[UNAVAILABLE] for _ in range(500)]).address)
    assert isinstance(error, octavo.UnavailableError) and error.job_id == stream.job_id == "job-0"


def test_a_stream_that_is_not_resumable_ends_with_its_connection(both, gateway, platform) -> None:
    one = gateway("a", ["accept", (0, 2), UNAVAILABLE])
    chunks, _, error = both.read(one.address, resumable=False)
    assert _ids(chunks) == TOKENS[:2] and isinstance(error, octavo.UnavailableError)
    assert platform.calls == [("a", "Generate")]


def test_a_cancelled_job_ends_its_stream_with_a_typed_error(both, gateway) -> None:
    _, _, error = both.read(gateway("a", ["accept", (0, 2), "cancelled"]).address)
    assert isinstance(error, octavo.CancelledError) and error.told


def test_closing_a_stream_cancels_its_job(both, gateway, platform) -> None:
    chunks, stream, error = both.read(gateway("a", ["accept", (0, 2), "hang"]).address, stop_after=1)
    assert error is None and len(chunks) == 1 and stream.cancelled
    assert platform.states == {"job-0": jobs_pb2.JOB_STATE_CANCELLED}


def test_a_stream_read_to_its_end_cancels_nothing(both, gateway, platform) -> None:
    both.read(gateway("a").address)
    assert "CancelJob" not in [rpc for _, rpc in platform.calls]


def test_breaking_out_of_the_loop_cancels_the_job(gateway, platform) -> None:
    with octavo.Client(gateway("a", ["accept", (0, 2), "hang"]).address) as client:
        for _ in client.generate("hi"):
            break
        gc.collect()
        assert platform.cancelled.wait(5)


async def test_breaking_out_of_the_async_loop_cancels_the_job(gateway, platform) -> None:
    async with octavo.AsyncClient(gateway("a", ["accept", (0, 2), "hang"]).address) as client:
        async for _ in client.generate("hi"):
            break
        gc.collect()
        assert await asyncio.to_thread(platform.cancelled.wait, 5)


def test_ctrl_c_cancels_the_job(gateway, platform) -> None:
    address = gateway("a", ["accept", (0, 2), "hang"]).address
    with pytest.raises(KeyboardInterrupt), octavo.Client(address) as client, client.generate("hi") as stream:
        assert stream.job_id == "job-0" and stream.num_prompt_tokens == 3
        raise KeyboardInterrupt
    assert platform.cancelled.is_set()


async def test_cancelling_the_task_cancels_the_job(gateway, platform) -> None:
    async with octavo.AsyncClient(gateway("a", ["accept", (0, 2), "hang"]).address) as client:
        task = asyncio.create_task(client.generate("hi").wait())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await asyncio.to_thread(platform.cancelled.wait, 5)


@pytest.mark.parametrize("script", [["hang"], ["accept", (0, 1), "hang"]])
def test_cancel_from_another_thread_ends_the_reader(gateway, platform, script) -> None:
    with octavo.Client(gateway("a", script).address) as client:
        stream = client.generate("hi")
        timer = threading.Timer(0.3, stream.cancel)
        timer.start()
        assert _ids(list(stream)) in ([], TOKENS[:1])
        timer.join()
        with pytest.raises(octavo.CancelledError):
            stream.wait()
    assert platform.states == {"job-0": jobs_pb2.JOB_STATE_CANCELLED}


async def test_cancel_from_another_task_ends_the_reader(gateway, platform) -> None:
    async with octavo.AsyncClient(gateway("a", ["accept", (0, 1), "hang"]).address) as client:
        stream = client.generate("hi")
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(stream.cancel()))
        assert [c.token_ids async for c in stream] == [tuple(TOKENS[:1])]
        assert stream.cancelled
    assert await asyncio.to_thread(platform.cancelled.wait, 5)


def test_a_stream_attached_to_a_job_begins_after_what_the_caller_has(gateway, platform) -> None:
    one = gateway("a")
    with octavo.Client(one.address) as client:
        handle = client.submit("hi")
        stream = client.attach(handle.id, token_ids=TOKENS[:3])
        assert _ids(list(stream)) == TOKENS[3:] and stream.token_ids == tuple(TOKENS)


def test_a_submission_is_tried_again_and_makes_one_job(both, gateway, platform) -> None:
    one = gateway("a")
    one.unary_failures.extend([UNAVAILABLE, UNAVAILABLE])
    handle = both.ask(one.address, "submit", "hi")
    assert (handle.id, handle.created) == ("job-0", True) and len(platform.jobs) == 1
    assert [rpc for _, rpc in platform.calls] == ["SubmitGeneration"] * 3


def test_a_call_that_may_act_twice_is_never_repeated(both, gateway, platform) -> None:
    one = gateway("a")
    one.unary_failures.append(UNAVAILABLE)
    with pytest.raises(octavo.UnavailableError):
        both.ask(one.address, "jobs.retry", "job-0")
    assert platform.calls == [("a", "RetryJob")]


def test_a_refusal_is_not_repeated_and_says_what_to_do(both, gateway, platform) -> None:
    with pytest.raises(octavo.NotFoundError) as caught:
        both.ask(gateway("a").address, "jobs.get", "nope")
    assert (caught.value.code, caught.value.hint) == ("JOB_NOT_FOUND", "look")
    assert len(platform.calls) == 1


def test_every_unary_call_has_a_deadline(both, gateway) -> None:
    one = gateway("a")
    both.ask(one.address, "submit", "hi")
    for method, args in (
        ("jobs.get", ["job-0"]),
        ("jobs.cancel", ["job-0"]),
        ("jobs.retry", ["job-0"]),
        ("jobs.events", ["job-0"]),
        ("jobs.list", []),
        ("models", []),
        ("plan_choices", []),
        ("workers", []),
        ("worker_records", ["w"]),
        ("worker_pool", ["w"]),
    ):
        both.ask(one.address, method, *args)
    assert len(one.deadlines) >= 9 and all(d is not None and d <= 30.5 for d in one.deadlines)


def test_a_plan_is_asked_for_in_the_callers_words(both, gateway) -> None:
    one = gateway("a")
    plan = both.ask(one.address, "plan", "m", device="H200", batch=7)
    assert (plan.model, plan.device, plan.ridge_batch, plan.least_tensor_parallel) == ("m", "H200", 7, None)
    assert both.ask(one.address, "plan_choices").devices == ("H200",)
    assert both.ask(one.address, "plan", "m", device="H200").ridge_batch is None


def test_a_pool_is_read_with_who_holds_its_blocks(both, gateway) -> None:
    pool = both.ask(gateway("a").address, "worker_pool", "w")
    assert (pool.num_blocks, pool.cell_used, pool.cell_owner) == (3, (1, 0, 1), (0, -1, 0))
    (sequence,) = pool.sequences
    assert (sequence.job_id, sequence.choice, sequence.blocks) == ("j", 1, (2, 0))


def test_lists_are_read_page_by_page_up_to_the_limit(both, gateway) -> None:
    one = gateway("a")
    assert [job.id for job in both.ask(one.address, "jobs.list", limit=5)] == [f"job-{n}" for n in range(5)]
    assert len(both.ask(one.address, "jobs.list", limit=100)) == 7
    with pytest.raises(octavo.InvalidArgumentError):
        both.ask(one.address, "jobs.list", states=["sleeping"])


def test_waiting_survives_a_gateway_and_ends_with_the_job(both, gateway) -> None:
    queued, running, done = jobs_pb2.JOB_STATE_QUEUED, jobs_pb2.JOB_STATE_RUNNING, jobs_pb2.JOB_STATE_SUCCEEDED
    one = gateway("a", [queued, running, UNAVAILABLE], [UNAVAILABLE], [running, done])
    assert both.ask(one.address, "wait", "job-0").state is octavo.JobState.SUCCEEDED


def test_watching_shows_each_change_once(gateway) -> None:
    queued, running, done = jobs_pb2.JOB_STATE_QUEUED, jobs_pb2.JOB_STATE_RUNNING, jobs_pb2.JOB_STATE_FAILED
    one = gateway("a", [queued, running, UNAVAILABLE], [running, done])
    with octavo.Client(one.address) as client:
        assert [str(job.state) for job in client.jobs.watch("job-0")] == ["queued", "running", "failed"]


def test_waiting_has_an_end(both, gateway) -> None:
    one = gateway("a", [jobs_pb2.JOB_STATE_RUNNING, "hang"])
    with pytest.raises(octavo.DeadlineExceededError) as caught:
        both.ask(one.address, "wait", "job-0", timeout_s=0.3)
    error = caught.value
    assert (error.job_id, error.code, error.told) == ("job-0", "WAIT_TIMEOUT", False)
    assert "within 0.3 s" in str(error) and "jobs.cancel" in error.hint
    # The transport's word stays in the cause, for who debugs it.
    assert "deadline" not in str(error).lower()
    with pytest.raises(octavo.InvalidArgumentError) as refused:
        both.ask(one.address, "wait", "job-0", timeout_s="soon")
    assert refused.value.param == "timeout_s"


def test_a_gateway_that_is_not_there_is_said_in_words(both) -> None:
    for method, args in (("models", ()), ("wait", ("job-0",))):
        with pytest.raises(octavo.UnavailableError) as caught:
            both.ask("127.0.0.1:1", method, *args)
        assert str(caught.value).startswith("no gateway can be reached: Connection refused")
        assert "octavo up" in caught.value.hint


CALLS = (lambda c: c.models(), lambda c: c.jobs.get("j"), lambda c: c.submit("hi"), lambda c: c.wait("j"))


def is_closed(error: octavo.OctavoError) -> bool:
    return isinstance(error, octavo.FailedPreconditionError) and error.code == "CLIENT_CLOSED" and bool(error.hint)


def test_a_closed_client_says_that_it_is_closed(gateway) -> None:
    client = octavo.Client(gateway("a").address)
    stream = client.generate("hi")
    client.close()
    client.close()
    for call in (*CALLS, lambda c: list(c.jobs.watch("j")), lambda c: c.generate("hi").wait(), lambda c: stream.wait()):
        with pytest.raises(octavo.OctavoError) as caught:
            call(client)
        assert is_closed(caught.value), caught.value


def test_a_closed_asyncio_client_says_that_it_is_closed(gateway) -> None:
    async def run() -> None:
        client = octavo.AsyncClient(gateway("a").address)
        await client.models()
        stream = client.generate("hi")
        await client.close()
        await client.close()
        for call in (*CALLS, lambda c: c.generate("hi").wait(), lambda c: stream.wait()):
            with pytest.raises(octavo.OctavoError) as caught:
                await call(client)
            assert is_closed(caught.value), caught.value

    asyncio.run(run())


def test_closing_a_client_ends_its_open_waits_with_that_word(gateway) -> None:
    client = octavo.Client(gateway("a", [jobs_pb2.JOB_STATE_RUNNING, "hang"]).address)
    closing = threading.Timer(0.3, client.close)
    closing.start()
    with pytest.raises(octavo.OctavoError) as caught:
        client.wait("job-0")
    closing.join()
    assert is_closed(caught.value), caught.value


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(both, gateway, monkeypatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:9")
    assert both.ask(gateway("a").address, "models")[0].name == "m"
