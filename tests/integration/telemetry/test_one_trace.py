"""One trace over calls, streams and the job row, seen by a collector; and spans that end however a call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context

import grpc
import pytest
from opentelemetry import trace
from otlp_receiver import Receiver, receiving

from octavo.v1 import scheduler_pb2, scheduler_pb2_grpc, worker_pb2, worker_pb2_grpc
from octavo_common import ids
from octavo_common.db.engine import connect
from octavo_common.errors import NotFound
from octavo_common.jobs.model import NewJob
from octavo_common.jobs.spec import GenerationSpec
from octavo_common.rpc.channel import internal_channel
from octavo_common.rpc.server import RpcServer, make_server
from octavo_common.settings import CommonSettings
from octavo_common.store import JobStore
from octavo_common.telemetry import names, propagation, setup
from octavo_common.telemetry.rpc import TraceInterceptor, TraceObserver


class Both(scheduler_pb2_grpc.SchedulerServiceServicer, worker_pb2_grpc.WorkerServiceServicer):
    behaviour = None

    async def GetStatus(self, request, context):
        if self.behaviour:
            await self.behaviour()
        return scheduler_pb2.GetStatusResponse(id=propagation.inject())

    async def Stream(self, request, context):
        yield worker_pb2.StreamResponse(text=propagation.inject())
        if self.behaviour:
            await self.behaviour()
        yield worker_pb2.StreamResponse(text=propagation.inject())


class Service:
    """A process as far as telemetry goes: providers, server and channel of its own."""

    def __init__(self, name: str) -> None:
        self.telemetry = setup.init(name, f"{name}-1", CommonSettings())
        self.observer = TraceObserver(self.telemetry.tracer, self.telemetry.instruments)
        self.servicer = Both()
        self.server: RpcServer

    async def start(self) -> str:
        self.server = make_server(interceptors=[TraceInterceptor(self.telemetry.tracer, self.telemetry.instruments)])
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.servicer, self.server)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self.servicer, self.server)
        return f"127.0.0.1:{await self.server.start('127.0.0.1', 0)}"

    def channel(self, address: str) -> grpc.aio.Channel:
        return internal_channel(address, "t", observer=self.observer)


@contextmanager
def services(monkeypatch: pytest.MonkeyPatch, *wanted: str) -> Iterator[tuple[Receiver, list[Service]]]:
    with receiving() as (endpoint, receiver), ExitStack() as stack:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        made = [Service(name) for name in wanted]
        for service in made:
            # Before the receiver ends: else the exporters wait for it.
            stack.callback(service.telemetry.shutdown)
        yield receiver, made


def status_of(channel: grpc.aio.Channel):
    return scheduler_pb2_grpc.SchedulerServiceStub(channel).GetStatus(scheduler_pb2.GetStatusRequest())


def stream_of(channel: grpc.aio.Channel):
    return worker_pb2_grpc.WorkerServiceStub(channel).Stream(worker_pb2.StreamRequest())


@pytest.mark.db
async def test_one_trace_id_goes_from_the_gateway_through_the_row_to_the_worker(
    monkeypatch: pytest.MonkeyPatch, pg_dsn: str
) -> None:
    database = connect(pg_dsn)
    jobs = JobStore(database)
    with services(monkeypatch, "octavo-gateway", "octavo-worker", "octavo-kvstore") as (receiver, made):
        gateway, worker, kvstore = made
        kv_address = await kvstore.start()
        worker_address = await worker.start()

        with gateway.telemetry.tracer.start_as_current_span("chat tiny") as root:
            trace_id = root.get_span_context().trace_id
            with gateway.telemetry.tracer.start_as_current_span(names.SPAN_SEND, kind=trace.SpanKind.PRODUCER):
                spec = GenerationSpec(temperature=0.0, top_k=0, top_p=1.0, seed=1, max_tokens=8)
                sent, _ = await jobs.submit(
                    NewJob(
                        id=ids.new_job_id(),
                        tenant="t",
                        model="tiny",
                        model_digest="d",
                        payload=spec.to_json(),
                        prompt_ids=(1,),
                        traceparent=propagation.inject(),
                        request_digest="r",
                    ),
                    max_queued=None,
                )

        async def work() -> None:
            row = await jobs.get(sent.id, tenant=None)
            assert propagation.trace_id(row.traceparent) == trace.format_trace_id(trace_id)
            span = propagation.consume(worker.telemetry.tracer, names.SPAN_PROCESS, row.traceparent)
            with trace.use_span(span, end_on_exit=True):
                async with worker.channel(kv_address) as channel:
                    await status_of(channel)

        # A task without the gateway's context, like another process.
        await asyncio.create_task(work(), context=Context())
        async with gateway.channel(worker_address) as channel:
            with trace.use_span(root):
                assert len([m async for m in stream_of(channel)]) == 2
        for service in made:
            await asyncio.to_thread(service.telemetry.shutdown)
        await worker.server.stop()
        await kvstore.server.stop()
    await database.dispose()

    assert {int.from_bytes(span.trace_id) for _, span in receiver.spans} == {trace_id}
    assert {service for service, _ in receiver.spans} == {"octavo-gateway", "octavo-worker", "octavo-kvstore"}
    (send,), (process,) = receiver.named(names.SPAN_SEND), receiver.named(names.SPAN_PROCESS)
    assert process.parent_span_id == send.span_id
    assert [link.span_id for link in process.links] == [send.span_id]
    assert process.kind == process.SPAN_KIND_CONSUMER
    client, server = sorted(receiver.named("octavo.v1.SchedulerService/GetStatus"), key=lambda s: -s.kind)
    assert (client.kind, server.kind) == (client.SPAN_KIND_CLIENT, server.SPAN_KIND_SERVER)
    assert client.parent_span_id == process.span_id
    assert server.parent_span_id == client.span_id
    assert "octavo_rpc_server_duration_seconds" in receiver.metrics


async def test_calls_at_the_same_time_do_not_mix_their_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    with services(monkeypatch, "a") as (_, (service,)):
        address = await service.start()
        async with service.channel(address) as channel:

            async def one() -> None:
                with service.telemetry.tracer.start_as_current_span("root") as span:
                    mine = trace.format_trace_id(span.get_span_context().trace_id)
                    assert propagation.trace_id((await status_of(channel)).id) == mine
                    said = [propagation.trace_id(message.text) async for message in stream_of(channel)]
                    assert said == [mine, mine]

            service.servicer.behaviour = lambda: asyncio.sleep(0.01)
            await asyncio.gather(*(one() for _ in range(20)))
            # And afterwards a call without a trace begins one of its own.
            async with grpc.aio.insecure_channel(address) as bare:
                first, second = (await status_of(bare)).id, (await status_of(bare)).id
            assert first
            assert propagation.trace_id(first) != propagation.trace_id(second)
        await service.server.stop()


@pytest.mark.parametrize("how", ["unary", "read", "never read"])
async def test_a_cancelled_call_still_ends_its_spans(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with services(monkeypatch, "a") as (receiver, (service,)):
        address = await service.start()
        service.servicer.behaviour = lambda: asyncio.sleep(30)
        async with service.channel(address) as channel:
            call = status_of(channel) if how == "unary" else stream_of(channel)
            if how == "read":
                async for _ in call:
                    break
            await asyncio.sleep(0.1)
            call.cancel()
            assert await service.server.in_flight.wait_idle(5)
            await asyncio.sleep(0.05)
        await asyncio.to_thread(service.telemetry.shutdown)
        await service.server.stop()
    spans = [span for _, span in receiver.spans]
    assert sorted(span.kind for span in spans) == [spans[0].SPAN_KIND_SERVER, spans[0].SPAN_KIND_CLIENT]
    codes = {a.value.int_value for span in spans for a in span.attributes if a.key == names.RPC_GRPC_STATUS_CODE}
    assert codes == {grpc.StatusCode.CANCELLED.value[0]}


async def test_errors_are_on_the_spans_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    with services(monkeypatch, "a") as (receiver, (service,)):
        address = await service.start()

        async def missing() -> None:
            raise NotFound("nothing here", code="MODEL_NOT_FOUND")

        service.servicer.behaviour = missing
        async with service.channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await status_of(channel)
        await asyncio.to_thread(service.telemetry.shutdown)
        await service.server.stop()
    server, client = sorted((span for _, span in receiver.spans), key=lambda span: span.kind)
    attributes = {a.key: a.value for a in server.attributes}
    assert attributes[names.ERROR_TYPE].string_value == "MODEL_NOT_FOUND"
    # Somebody asked for what is not there: the client failed, the server did its work.
    assert server.status.code == server.status.STATUS_CODE_UNSET
    assert client.status.code == client.status.STATUS_CODE_ERROR


async def test_without_a_collector_nothing_is_sent_and_traces_still_have_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    service = Service("a")
    with service.telemetry.tracer.start_as_current_span("x"):
        assert propagation.inject().startswith("00-")
    service.telemetry.shutdown()
