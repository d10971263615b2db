import asyncio
import threading

import grpc
import pytest
from fakes.tiny_executor import expected_output
from fakes.tiny_worker import TOKEN, TinyWorker, read, until

from octavo.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from octavo_common.jobs.model import JobState
from octavo_common.jobs.spec import GenerationResult
from octavo_common.rpc.channel import internal_channel
from octavo_common.text.bundle import TokenizerBundle

PROMPT = tuple(range(1, 12))


@pytest.fixture
async def worker(pg_dsn, bundle):
    async with TinyWorker(pg_dsn, bundle) as tiny:
        yield tiny
    assert tiny.stats.num_used_blocks == 0


def result_of(row) -> GenerationResult:
    assert row.state is JobState.SUCCEEDED, row.error
    return GenerationResult.from_json(dict(row.result))


async def code_of(call) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await read(call)
    return error.value.code()


async def test_a_job_is_computed_streamed_and_committed(worker):
    job = await worker.start(PROMPT, 12)
    tokens, text, end = await read(worker.stream(job))
    assert tokens == worker.expected(PROMPT, 12)
    assert text == worker.tokenizer.decode(tokens)
    assert end.finish_reason == common_pb2.FINISH_REASON_LENGTH
    # Committed first, then sent.
    result = result_of(await worker.get(job))
    assert (list(result.token_ids), result.text, result.finish_reason) == (tokens, text, "length")
    usage = result.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.seed) == (11, 12, 7)
    assert 0 <= usage.queue_s <= usage.time_to_first_token_s <= usage.total_s
    assert end.usage.completion_tokens == 12


async def test_a_stream_may_come_before_its_job_and_waits(worker):
    job = await worker.submit(PROMPT)
    reading = asyncio.create_task(read(worker.stream(job, fence=1)))
    await asyncio.sleep(0.1)
    assert not reading.done()
    await worker.assign(job)
    tokens, _, end = await reading
    assert tokens == worker.expected(PROMPT)
    assert end is not None


async def test_the_card_names_a_tokenizer_that_is_stored(worker):
    data = await worker.artifacts.get(worker.process.card.tokenizer_digest)
    assert TokenizerBundle.from_bytes(data) == worker.bundle


async def test_readers_join_at_any_token_also_after_the_end(worker):
    worker.executor.step_s = 0.005
    job = await worker.start(PROMPT, 20)
    expected = worker.expected(PROMPT, 20)
    reads = [read(worker.stream(job, prefix=expected[:count])) for count in (0, 1, 7, 19, 20)]
    for count, (tokens, text, end) in zip((0, 1, 7, 19, 20), await asyncio.gather(*reads), strict=True):
        assert tokens == expected[count:]
        assert end is not None
        if count == 0:
            assert text == worker.tokenizer.decode(expected)
    tokens, _, _ = await read(worker.stream(job, prefix=expected[:5]))
    assert tokens == expected[5:]


async def test_a_reader_that_was_cut_goes_on_with_the_next_token(worker):
    worker.executor.step_s = 0.01
    job = await worker.start(PROMPT, 30)
    call, got, text = worker.stream(job), [], ""
    async for message in call:
        got += message.token_ids
        text += message.text
        if len(got) >= 4:
            call.cancel()
            break
    tokens, rest, _ = await read(worker.stream(job, prefix=got))
    assert [*got, *tokens] == worker.expected(PROMPT, 30)
    assert text + rest == worker.tokenizer.decode([*got, *tokens])


async def test_other_tokens_before_the_index_are_refused(worker):
    job = await worker.start(PROMPT, 5)
    await worker.ended(job)
    assert await code_of(worker.stream(job, prefix=[96, 95])) is grpc.StatusCode.FAILED_PRECONDITION
    assert await code_of(worker.stream(job, prefix=[1] * 50)) is grpc.StatusCode.FAILED_PRECONDITION


async def test_calls_without_the_token_are_refused(worker):
    job = await worker.start(PROMPT)
    async with grpc.aio.insecure_channel(worker.process.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        assert await code_of(stub.Stream(worker_pb2.StreamRequest(job_id=str(job.id)))) is (
            grpc.StatusCode.UNAUTHENTICATED
        )
    async with internal_channel(worker.process.address, TOKEN + "x") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await worker_pb2_grpc.WorkerServiceStub(channel).GetRecords(worker_pb2.GetRecordsRequest())


@pytest.mark.parametrize("request_", [{"job_id": "x"}, {"first_token": -1}])
async def test_malformed_requests_are_the_callers_fault(worker, request_):
    call = worker.stub.Stream(worker_pb2.StreamRequest(**request_))
    assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_records_say_what_each_step_did(worker):
    await worker.ended(await worker.start(PROMPT, 5))
    answer = await worker.stub.GetRecords(worker_pb2.GetRecordsRequest())
    steps = list(answer.records)
    assert [r.step for r in steps] == sorted({r.step for r in steps})
    assert sum(r.num_prompt_tokens for r in steps) == len(PROMPT)
    assert sum(r.num_decode_tokens for r in steps) == 4
    later = await worker.stub.GetRecords(worker_pb2.GetRecordsRequest(after_step=steps[1].step))
    assert [r.step for r in later.records] == [r.step for r in steps[2:]]


async def test_many_jobs_at_once_each_get_their_own_tokens(worker):
    prompts = [tuple(range(n, n + 3 + n % 9)) for n in range(30)]
    jobs = [await worker.submit(prompt, 10) for prompt in prompts]
    jobs = [await worker.assign(job) for job in jobs]
    for prompt, (tokens, _, _) in zip(
        prompts, await asyncio.gather(*(read(worker.stream(job)) for job in jobs)), strict=True
    ):
        assert tokens == worker.expected(prompt, 10)


async def test_a_stop_string_over_token_borders_ends_the_job(worker):
    tokens = worker.expected(PROMPT, 30)
    whole = worker.tokenizer.decode(tokens)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    job = await worker.start(PROMPT, 30, stop=(stop,))
    got, text, end = await read(worker.stream(job))
    assert text == whole[: whole.index(stop)]
    assert end.finish_reason == common_pb2.FINISH_REASON_STOP
    assert got == tokens[: len(got)]
    result = result_of(await worker.get(job))
    assert (list(result.token_ids), result.text) == (got, text)


async def test_an_answer_that_a_stop_string_ends_is_computed_no_further_while_the_others_go_on(worker):
    worker.executor.step_s = 0.02
    sampling = {"temperature": 1.0, "seed": 3}
    request = worker.request(PROMPT, 60, **sampling)
    tokens = [expected_output(request, 1000, choice) for choice in range(2)]
    texts = [worker.tokenizer.decode(ids) for ids in tokens]
    stop = next(texts[0][i : i + 4] for i in range(8, 40) if texts[0][i : i + 4] not in texts[1])
    job = await worker.start(PROMPT, 60, n=2, stop=(stop,), **sampling)
    await until(lambda: worker.stats.num_running == 2, bool)
    await until(lambda: worker.stats.num_running == 1, bool)
    # What the answer had for itself is there for others, long before the other one ends.
    assert not (await worker.get(job)).state.ended
    result = result_of(await worker.ended(job))
    assert result.text == texts[0][: texts[0].index(stop)]
    assert list(result.others[0].token_ids) == tokens[1]
    rows = [row.id.choice for plan in worker.executor.plans for row in plan.rows]
    assert rows.count(0) < rows.count(1)


async def test_stop_tokens_and_sampling_reach_the_engine(worker):
    sampling = {"temperature": 1.0, "seed": 3}
    free = worker.expected(PROMPT, 20, **sampling)
    job = await worker.start(PROMPT, 20, stop_token_ids=(free[6],), **sampling)
    tokens, _, end = await read(worker.stream(job))
    assert tokens == free[: free.index(free[6]) + 1]
    assert end.finish_reason == common_pb2.FINISH_REASON_STOP


async def test_an_echoed_prompt_comes_with_the_first_token_and_stands_in_the_result(worker):
    job = await worker.start(PROMPT, 6, echo=True)
    tokens, text, _ = await read(worker.stream(job))
    assert text.startswith(worker.tokenizer.decode(PROMPT))
    assert result_of(await worker.get(job)).text == text
    none = await worker.start(PROMPT, 0, echo=True)
    tokens, text, end = await read(worker.stream(none))
    assert (tokens, text) == ([], worker.tokenizer.decode(PROMPT))
    assert end.finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_usage_counts_prefix_hits(worker):
    await worker.ended(await worker.start(PROMPT, 3))
    row = await worker.ended(await worker.start(PROMPT, 3))
    assert result_of(row).usage.cached_tokens == 8


async def test_a_request_that_makes_the_model_fail_fails_alone(worker):
    worker.bad.add(90)
    bad = await worker.start((90, 1, 2), 5)
    good = await worker.start(PROMPT, 5)
    assert list(result_of(await worker.ended(good)).token_ids) == worker.expected(PROMPT, 5)
    row = await worker.ended(bad)
    assert row.state is JobState.FAILED
    assert row.error["code"] == "ENGINE_FAILED"
    _, _, end = await read(worker.stream(bad))
    assert end.failure.code == "ENGINE_FAILED"


async def test_a_prompt_beyond_the_limit_fails_with_its_code(worker):
    row = await worker.ended(await worker.start([1] * 256, 5))
    assert (row.state, row.error["code"]) == (JobState.FAILED, "PROMPT_TOO_LONG")


async def test_a_payload_that_nobody_can_read_fails_and_harms_nobody(worker):
    job = await worker.start(PROMPT, 5, row={"kind": "generation"})
    strange = await worker.submit(PROMPT, 5, row={"kind": "something_else"})
    await worker.assign(strange)
    assert (await worker.ended(strange)).error["code"] == "UNKNOWN_KIND"
    assert (await worker.ended(job)).state is JobState.SUCCEEDED


async def test_the_heartbeat_tells_load_and_prefixes(worker):
    await worker.ended(await worker.start(PROMPT, 5, row={"prefix_keys": ("k1", "k2")}))
    worker.executor.step_s = 0.02
    running = await worker.start(PROMPT, 200)
    await worker.jobs.cancel(running.id, tenant=None)

    async def load():
        return (await worker.processes.list("worker", 3600.0))[0].load

    seen = await until(load, lambda load: load.get("prefix_keys") == ["k1", "k2"])
    assert seen["num_total_blocks"] == 64
    await worker.ended(running)


class Panic(BaseException):
    """As native code raises it."""


class Panicking:
    """Compiles when a test lets it, and breaks."""

    def __init__(self):
        self.permit = threading.Semaphore(0)

    def compile(self, kind, text=""):
        assert self.permit.acquire(timeout=30)
        raise Panic(kind, text)


async def test_rows_of_one_job_hide_no_job_that_waits_and_a_compilers_panic_ends_its_own(pg_dsn, bundle):
    grammars = Panicking()
    async with TinyWorker(pg_dsn, bundle, {"lease_s": 3.0}, grammars=grammars) as worker:
        worker.executor.step_s = 0.2
        many = await worker.start(PROMPT, 45, n=4)
        waiting = await worker.start(PROMPT, 5, grammar=("regex", "a"))

        async def load():
            return (await worker.processes.list("worker", 3600.0))[0].load

        seen = await until(load, lambda load: load.get("num_running") == 4)
        assert seen["num_waiting"] == 1
        grammars.permit.release()
        row = await worker.ended(waiting)
        assert (row.error["code"], row.error["status"]) == ("GRAMMAR_FAILED", "INTERNAL")
        worker.executor.step_s = 0.0
        await worker.ended(many)
        assert (await worker.ended(await worker.start(PROMPT, 2))).state is JobState.SUCCEEDED


async def test_the_token_that_scoring_a_prompt_takes_is_not_counted(worker):
    scored = await worker.ended(await worker.start(PROMPT, 0, prompt_logprobs=0))
    assert scored.state is JobState.SUCCEEDED and len(result_of(scored).prompt_logprobs) == len(PROMPT)
    await worker.ended(await worker.start(PROMPT, 5))
    assert 'octavo_generation_tokens_total{model_name="tiny"} 5.0' in await page(worker, "/metrics")


async def page(worker, path: str) -> str:
    host, _, port = worker.process.metrics_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def test_metrics_and_health_are_served_under_the_shared_names(worker):
    await worker.ended(await worker.start(PROMPT, 5))
    text = await page(worker, "/metrics")
    for line in (
        'octavo_generation_tokens_total{model_name="tiny"} 5.0',
        'octavo_prompt_tokens_total{model_name="tiny"} 11.0',
        'octavo_request_success_total{finished_reason="length",model_name="tiny"} 1.0',
        'octavo_time_to_first_token_seconds_count{model_name="tiny"} 1.0',
        'octavo_inter_token_latency_seconds_count{model_name="tiny"} 4.0',
    ):
        assert line in text
    assert "200 OK" in await page(worker, "/health")
