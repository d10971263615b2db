"""Makes and feeds the metrics that names.py defines, so that services create none of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from octavo_common.telemetry.names import Kind, Metric

Observed = Iterable[tuple[float, Mapping[str, str]]]


class Instruments:
    """The instruments of one process. Labels must be those of the metric's definition; a missing one is left out."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: set[str] = set()

    def add(self, metric: Metric, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Count; the value is not negative."""
        counter = self._counters.get(metric.name)
        if counter is None:
            assert metric.kind is Kind.COUNTER, metric
            counter = self._meter.create_counter(metric.name, metric.unit, metric.description)
            self._counters[metric.name] = counter
        counter.add(value, _checked(metric, labels))

    def record(self, metric: Metric, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Put a value into a histogram."""
        histogram = self._histograms.get(metric.name)
        if histogram is None:
            assert metric.kind is Kind.HISTOGRAM, metric
            histogram = self._meter.create_histogram(
                metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
            )
            self._histograms[metric.name] = histogram
        histogram.record(value, _checked(metric, labels))

    def observe(self, metric: Metric, callback: Callable[[], Observed]) -> None:
        """Ask `callback` for (value, labels) pairs when the gauge is read, maybe on another thread. Once per metric."""
        assert metric.kind is Kind.GAUGE, metric
        assert metric.name not in self._gauges, f"{metric.name} is observed already"
        self._gauges.add(metric.name)

        def observations(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, _checked(metric, labels)) for value, labels in callback()]

        self._meter.create_observable_gauge(metric.name, [observations], metric.unit, metric.description)


def _checked(metric: Metric, labels: Mapping[str, str] | None) -> Mapping[str, str]:
    labels = labels or {}
    assert labels.keys() <= set(metric.labels), f"{metric.name} has no labels {labels.keys() - set(metric.labels)}"
    return labels
