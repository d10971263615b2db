"""A collector in this process: the OTLP services from the protocol's own package, keeping what they get."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


class Receiver:
    def __init__(self) -> None:
        # (service.name, span)
        self.spans: list[tuple[str, trace_pb2.Span]] = []
        self.metrics: dict[str, object] = {}

    def named(self, name: str) -> list[trace_pb2.Span]:
        return [span for _, span in self.spans if span.name == name]


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def Export(self, request, context):
        for resource in request.resource_spans:
            service = {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.receiver.spans += [(service, span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def Export(self, request, context):
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.receiver.metrics.update({metric.name: metric for metric in scope.metrics})
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def receiving() -> Iterator[tuple[str, Receiver]]:
    receiver = Receiver()
    pool = ThreadPoolExecutor(2)
    server = grpc.server(pool)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", receiver
    finally:
        server.stop(0).wait()
        pool.shutdown()
