"""The public gRPC API of a real gateway: who may do what, what is refused, and what is told about jobs and workers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from fakes.gateway_world import Client, World, error_of, generation

from octavo.v1 import gateway_pb2, jobs_pb2, pool_pb2
from octavo_common.jobs.model import JobState, TenantLimits
from octavo_common.jobs.spec import GenerationSpec

pytestmark = pytest.mark.db
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def chat(*messages: tuple[str, str]) -> gateway_pb2.ChatInput:
    return gateway_pb2.ChatInput(messages=[gateway_pb2.ChatMessage(role=r, content=c) for r, c in messages])


@pytest.fixture
async def client(world: World) -> Client:
    gateway = await world.gateway()
    await world.worker()
    return world.client(gateway)


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"prompt": ""}, INVALID, "EMPTY_PROMPT"),
        ({"sampling": {"max_tokens": 0}}, INVALID, "INVALID_ARGUMENT"),
        ({"sampling": {"temperature": float("nan")}}, INVALID, "INVALID_ARGUMENT"),
        ({"sampling": {"temperature": -1.0}}, INVALID, "INVALID_ARGUMENT"),
        ({"sampling": {"temperature": 1e50}}, INVALID, "INVALID_ARGUMENT"),
        ({"sampling": {"repetition_penalty": 1e-50}}, INVALID, "INVALID_ARGUMENT"),
        ({"sampling": {"top_p": 0.0}}, INVALID, "INVALID_ARGUMENT"),
        ({"prompt": "x" * 128}, INVALID, "PROMPT_TOO_LONG"),
        ({"prompt": "x" * 10_000_000}, INVALID, "PROMPT_TOO_LARGE"),
        ({"tokens": gateway_pb2.TokenInput(ids=[1] * 128)}, INVALID, "PROMPT_TOO_LONG"),
        ({"tokens": gateway_pb2.TokenInput(ids=[257])}, INVALID, "UNKNOWN_TOKEN"),
        ({"sampling": {"stop_token_ids": [257]}}, INVALID, "UNKNOWN_TOKEN"),
        ({"chat": chat(("robot", "hi"))}, INVALID, "INVALID_ARGUMENT"),
        ({"model": "nobody"}, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
        ({"on_disconnect": 9}, INVALID, "INVALID_ARGUMENT"),
    ],
)
async def test_bad_input_is_refused_and_becomes_no_job(
    world: World, client: Client, fields: dict[str, Any], code: grpc.StatusCode, reason: str
) -> None:
    got, details, told = await error_of(client.generate(**fields).call)
    assert (got, told) == (code, reason), details
    assert len(details) < 400
    assert await world.jobs.list(tenant=None) == []


async def test_invalid_utf8_inside_a_string_is_an_invalid_argument(world: World, client: Client) -> None:
    message = gateway_pb2.GenerateRequest(generation=generation(prompt="hello")).SerializeToString()
    raw = client.channel.unary_stream("/octavo.v1.GenerationService/Generate")
    call = raw(message.replace(b"hello", b"he\xffl\xfe"), metadata=client.metadata, timeout=5.0)
    assert (await error_of(call))[0] == INVALID
    assert await world.jobs.list(tenant=None) == []


async def test_an_unknown_model_is_answered_with_the_known_ones(world: World, client: Client) -> None:
    from octavo_common.rpc.errors import from_rpc_error

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.submit(model="nobody")
    assert "tiny" in from_rpc_error(raised.value).hint


async def test_a_prompt_of_the_limit_minus_one_gets_one_token(world: World, client: Client) -> None:
    answer = await client.submit(prompt="x" * 127, sampling={"max_tokens": 50})
    job = await world.job(answer.job_id)
    assert job.num_prompt_tokens == 127
    assert GenerationSpec.from_json(dict(job.payload)).max_tokens == 1


async def test_the_row_holds_all_that_a_worker_needs(world: World, client: Client) -> None:
    answer = await client.submit(
        chat=chat(("user", "hi")), priority=5, fair_key="f", cache_salt="s", sampling={"stop": ["x"], "top_k": 3}
    )
    job = await world.job(answer.job_id)
    spec = GenerationSpec.from_json(dict(job.payload))
    assert bytes(job.prompt_ids).decode() == "user: hi\nassistant:"
    assert (job.tenant, job.model, job.priority, job.fair_key) == ("acme", "tiny", 5, "4:acme:f")
    assert (spec.stop, spec.top_k, spec.operation, spec.max_tokens) == (("x",), 3, "chat", 10)
    assert spec.seed >= 0
    assert job.stream_owner is None
    assert len(job.traceparent.split("-")) == 4
    assert job.cache_salt == "4:acme:s"


async def test_prefix_keys_differ_between_tenants(world: World, client: Client) -> None:
    other = Client(int(client.port), await world.keys.create("other", "user", "test"))
    world.stack.push_async_callback(other.channel.close)
    keys = [(await world.job((await c.submit(prompt="x" * 100)).job_id)).prefix_keys for c in (client, client, other)]
    assert len(keys[0]) == 1
    assert keys[0] == keys[1] != keys[2]


async def test_calls_without_a_good_key_are_refused(world: World, client: Client) -> None:
    for key in ("", "ok-wrong"):
        stranger = Client(client.port, key)
        code, _, _ = await error_of(
            stranger.models.ListModels(gateway_pb2.ListModelsRequest(), metadata=stranger.metadata)
        )
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert (await error_of(stranger.generate().call))[0] == grpc.StatusCode.UNAUTHENTICATED
        await stranger.channel.close()


async def test_a_user_sees_its_own_jobs_and_an_admin_all(world: World, client: Client) -> None:
    other = Client(client.port, await world.keys.create("other", "user", "test"))
    admin = Client(client.port, world.admin_key)
    for each in (other, admin):
        world.stack.push_async_callback(each.channel.close)
    mine = (await client.submit()).job_id
    theirs = (await other.submit()).job_id

    async def listed(who: Client, **fields: Any) -> list[str]:
        answer = await who.jobs.ListJobs(jobs_pb2.ListJobsRequest(**fields), metadata=who.metadata)
        return [job.id for job in answer.jobs]

    assert await listed(client) == [mine]
    assert await listed(admin) == [theirs, mine]
    assert await listed(admin, tenant="other") == [theirs]
    for call, request in (
        (client.jobs.GetJob, jobs_pb2.GetJobRequest(id=theirs)),
        (client.jobs.CancelJob, jobs_pb2.CancelJobRequest(id=theirs)),
        (client.jobs.RetryJob, jobs_pb2.RetryJobRequest(id=theirs)),
        (client.jobs.ListJobEvents, jobs_pb2.ListJobEventsRequest(id=theirs)),
        (client.jobs.WatchJob, jobs_pb2.WatchJobRequest(id=theirs)),
        (client.jobs.GetJob, jobs_pb2.GetJobRequest(id="no-uuid")),
        (
            client.generation.ResumeGeneration,
            gateway_pb2.ResumeGenerationRequest(job_id=theirs, on_disconnect=gateway_pb2.ON_DISCONNECT_DETACH),
        ),
    ):
        code, _, reason = await error_of(call(request, metadata=client.metadata))
        assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")
    refused = client.jobs.ListJobs(jobs_pb2.ListJobsRequest(tenant="other"), metadata=client.metadata)
    assert (await error_of(refused))[0] == grpc.StatusCode.PERMISSION_DENIED
    ended = await admin.jobs.CancelJob(jobs_pb2.CancelJobRequest(id=theirs), metadata=admin.metadata)
    assert ended.job.state == jobs_pb2.JOB_STATE_CANCELLED


async def test_a_stream_is_not_resumed_from_what_the_model_cannot_have_said(world: World, client: Client) -> None:
    job_id = (await client.submit()).job_id
    for ids in ([257], [1] * 11, [-1]):
        assert (await error_of(client.resume(job_id, ids).call))[0] == INVALID
    job = await world.job(job_id)
    assert (job.emitted_ids, job.stream_owner, job.fence) == ((), None, 0)


async def test_a_full_queue_answers_resource_exhausted_with_a_time(world: World, client: Client) -> None:
    from octavo_common.rpc.errors import from_rpc_error

    await world.tenants.set_limits("acme", TenantLimits(max_queued=1))
    await client.submit()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.submit()
    error = from_rpc_error(raised.value)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.retry_after_s is not None


async def test_pages_of_jobs_hold_each_job_once(world: World, client: Client) -> None:
    made = [(await client.submit()).job_id for _ in range(5)]
    seen: list[str] = []
    token = ""
    while True:
        request = jobs_pb2.ListJobsRequest(page_size=2, page_token=token)
        answer = await client.jobs.ListJobs(request, metadata=client.metadata)
        seen += [job.id for job in answer.jobs]
        token = answer.next_page_token
        if not token:
            break
    assert seen == made[::-1]
    for bad in ({"page_size": 1001}, {"page_size": -1}, {"page_token": "x"}, {"states": [99]}):
        call = client.jobs.ListJobs(jobs_pb2.ListJobsRequest(**bad), metadata=client.metadata)
        assert (await error_of(call))[0] == INVALID


async def test_a_watch_tells_every_state_until_the_end(world: World, client: Client) -> None:
    worker = await world.worker()
    job_id = (await client.submit()).job_id
    watch = client.jobs.WatchJob(jobs_pb2.WatchJobRequest(id=job_id), metadata=client.metadata, timeout=15.0)
    assert (await watch.read()).job.state == jobs_pb2.JOB_STATE_QUEUED
    job = await world.job(job_id)
    await worker.take(job.id)
    while (state := (await watch.read()).job.state) == jobs_pb2.JOB_STATE_ASSIGNED:
        pass
    assert state == jobs_pb2.JOB_STATE_RUNNING
    await worker.finish(job.id)
    last = (await watch.read()).job
    assert last.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert last.result.text == "ABCDEFGHIJ"
    assert last.result.usage.completion_tokens == 10
    assert await watch.read() is grpc.aio.EOF
    answer = await client.jobs.ListJobEvents(jobs_pb2.ListJobEventsRequest(id=job_id), metadata=client.metadata)
    assert [e.event for e in answer.events] == ["queued", "assigned", "running", "succeeded"]
    assert answer.events[1].process_id == str(worker.id)


async def test_an_ended_job_is_retried_as_a_new_one(world: World, client: Client) -> None:
    worker = await world.worker()
    job_id = (await client.submit()).job_id
    request = jobs_pb2.RetryJobRequest(id=job_id)
    refused = client.jobs.RetryJob(request, metadata=client.metadata)
    assert (await error_of(refused))[0] == grpc.StatusCode.FAILED_PRECONDITION
    await worker.take((await world.job(job_id)).id)
    await worker.finish((await world.job(job_id)).id)
    again = await client.jobs.RetryJob(request, metadata=client.metadata)
    assert again.job.id != job_id
    assert again.job.state == jobs_pb2.JOB_STATE_QUEUED


async def test_an_idempotent_submission_is_one_job(world: World, client: Client) -> None:
    first, second = [await client.submit(idempotency_key="k") for _ in range(2)]
    assert first.job_id == second.job_id
    assert (first.created, second.created) == (True, False)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.submit(idempotency_key="k", prompt="another")
    assert raised.value.code() == grpc.StatusCode.ALREADY_EXISTS


async def test_models_are_listed_and_remembered_while_their_worker_restarts(world: World) -> None:
    gateway = await world.gateway()
    client = world.client(gateway)
    assert (await error_of(client.generate().call))[2] == "MODEL_NOT_FOUND"
    worker = await world.worker()
    gateway.gateway.catalogue._read_s = None
    answer = await client.models.ListModels(gateway_pb2.ListModelsRequest(), metadata=client.metadata)
    (model,) = answer.models
    assert (model.name, model.num_workers, model.max_sequence_tokens) == ("tiny", 1, 128)
    assert list(model.numerics_ids) == ["float32/test"]
    await world.sql("update processes set heartbeat_at = now() - interval '1 minute' where id = :id", id=worker.id)
    gateway.gateway.catalogue._read_s = None
    answer = await client.models.ListModels(gateway_pb2.ListModelsRequest(), metadata=client.metadata)
    assert [m.num_workers for m in answer.models] == [0]
    # A queue may form meanwhile.
    assert (await world.job((await client.submit()).job_id)).state is JobState.QUEUED


async def test_workers_are_listed_and_their_records_are_for_admins(world: World) -> None:
    gateway, worker, dead = await world.gateway(), await world.worker(), await world.worker()
    await world.sql("update processes set heartbeat_at = now() - interval '1 minute' where id = :id", id=dead.id)
    client, admin = world.client(gateway), world.client(gateway, world.admin_key)
    answer = await client.fleet.ListWorkers(gateway_pb2.ListWorkersRequest(), metadata=client.metadata)
    (one,) = answer.workers
    assert (one.id, one.address, one.alive, one.num_running, one.num_waiting) == (
        str(worker.id), worker.address, True, 1, 2,
    )  # fmt: skip
    assert (one.num_free_blocks, one.num_total_blocks, one.max_jobs, one.block_size) == (3, 64, 100, 16)
    everybody = gateway_pb2.ListWorkersRequest(include_dead=True)
    answer = await client.fleet.ListWorkers(everybody, metadata=client.metadata)
    assert {w.id: w.alive for w in answer.workers} == {str(worker.id): True, str(dead.id): False}
    request = gateway_pb2.GetWorkerRecordsRequest(worker_id=str(worker.id), after_step=1)
    refused = client.fleet.GetWorkerRecords(request, metadata=client.metadata)
    assert (await error_of(refused))[0] == grpc.StatusCode.PERMISSION_DENIED
    records = (await admin.fleet.GetWorkerRecords(request, metadata=admin.metadata)).records
    assert [r.step for r in records] == [2, 3]
    look = pool_pb2.GetWorkerPoolRequest(worker_id=str(worker.id))
    refused = client.fleet.GetWorkerPool(look, metadata=client.metadata)
    assert (await error_of(refused))[0] == grpc.StatusCode.PERMISSION_DENIED
    pool = (await admin.fleet.GetWorkerPool(look, metadata=admin.metadata)).pool
    assert (pool.step, pool.num_blocks, len(pool.cell_used)) == (3, 64, 64)
    look = pool_pb2.GetWorkerPoolRequest(worker_id=str(dead.id))
    refused = admin.fleet.GetWorkerPool(look, metadata=admin.metadata)
    assert (await error_of(refused))[0] == grpc.StatusCode.UNAVAILABLE
    for worker_id in ("x", str(gateway.gateway.id)):
        request = gateway_pb2.GetWorkerRecordsRequest(worker_id=worker_id)
        refused = admin.fleet.GetWorkerRecords(request, metadata=admin.metadata)
        assert (await error_of(refused))[0] == grpc.StatusCode.NOT_FOUND


async def test_a_stream_that_nobody_reads_is_a_client_that_has_gone(world: World) -> None:
    from octavo_gateway.requests import RawRequest
    from octavo_gateway.validation import validate

    gateway = await world.gateway()
    await world.worker()
    gateway.gateway.hub._unread_s = 0.05
    principal = await gateway.gateway.api.authenticate(world.key)
    accepted = await gateway.gateway.api.accept(principal, validate(RawRequest(prompt="hello")))
    await world.until(accepted.job_id, "cancelled")
    assert gateway.gateway.hub.num_readers == 0


async def test_a_caller_cancelled_while_its_job_is_written_leaves_no_job_behind(world: World) -> None:
    from octavo_gateway.requests import RawRequest
    from octavo_gateway.validation import validate

    gateway = await world.gateway()
    await world.worker()
    api = gateway.gateway.api
    principal = await api.authenticate(world.key)
    for ticks in range(0, 40, 3):
        task = asyncio.create_task(api.accept(principal, validate(RawRequest(prompt="hello"))))
        for _ in range(ticks):
            await asyncio.sleep(0.0005)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(result, BaseException):
            api.leave(result)
    async with asyncio.timeout(5):
        while any(not job.state.ended for job in await world.jobs.list(tenant=None)):
            await asyncio.sleep(0.02)
    assert gateway.gateway.hub.num_followed == 0


async def test_a_job_of_another_kind_has_no_stream_to_resume(world: World):
    client = world.client(await world.gateway())
    await world.worker()
    job_id = (await client.submit()).job_id
    # Its payload is nothing that a generation could be read from.
    await world.sql("update jobs set kind = 'edge_build', payload = '{\"model\": 1}' where id = :id", id=job_id)
    status, _, _ = await error_of(client.resume(job_id, []).call)
    assert status is grpc.StatusCode.FAILED_PRECONDITION
