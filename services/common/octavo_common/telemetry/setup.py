"""Makes the providers of one process. The only module that knows exporters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry, generate_latest

from octavo_common.settings import CommonSettings, OtelSettings
from octavo_common.telemetry import logs
from octavo_common.telemetry.instruments import Instruments

SCOPE = "octavo"
FLUSH_TIMEOUT_MS = 3000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What a process needs to tell about itself. Given to those who use it; nothing is global."""

    tracer: Tracer
    meter: Meter
    instruments: Instruments
    registry: CollectorRegistry
    # Somebody collects the spans.
    exports_traces: bool
    _tracer_provider: TracerProvider
    _meter_provider: MeterProvider

    def prometheus_text(self) -> bytes:
        """All metrics as text for Prometheus."""
        return generate_latest(self.registry)

    def shutdown(self) -> None:
        """Send what is buffered, for at most a few seconds, and end the exporters' threads. Blocks."""
        self._tracer_provider.force_flush(FLUSH_TIMEOUT_MS)
        self._tracer_provider.shutdown()
        self._meter_provider.shutdown(FLUSH_TIMEOUT_MS)


def init(
    service_name: str, instance_id: str, settings: CommonSettings, *, otel: OtelSettings | None = None
) -> Telemetry:
    """Configure logs and make the providers. Call it once per process, after any fork.

    Metrics are always there for /metrics. Spans and metrics are exported only when the standard OTEL_* variables name a
    collector; without one, spans still carry ids for logs and for the others of the trace.
    """
    logs.configure(service=service_name, instance=instance_id, level=settings.log_level, log_format=settings.log_format)
    standard = otel or OtelSettings()
    resource = Resource.create({"service.name": service_name, "service.instance.id": instance_id})
    # Both end in our own shutdown(), not in an exit handler that may wait for a collector.
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    if standard.exports_traces:
        tracer_provider.add_span_processor(BatchSpanProcessor(_span_exporter()))
    registry = CollectorRegistry()
    readers: list[MetricReader] = [_prometheus_reader(registry)]
    if standard.exports_metrics:
        readers.append(PeriodicExportingMetricReader(_metric_exporter()))
    meter_provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    for reason in standard.ignored():
        log.warning("telemetry.ignored_setting", reason=reason)
    meter = meter_provider.get_meter(SCOPE)
    return Telemetry(
        tracer=tracer_provider.get_tracer(SCOPE),
        meter=meter,
        instruments=Instruments(meter),
        registry=registry,
        exports_traces=standard.exports_traces,
        _tracer_provider=tracer_provider,
        _meter_provider=meter_provider,
    )


def _prometheus_reader(registry: CollectorRegistry) -> PrometheusMetricReader:
    return PrometheusMetricReader(scope_info_enabled=False, registry=registry)


# Imported only where a collector is named: they bring 60 ms and a gRPC channel.
def _span_exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _metric_exporter() -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()
