"""What is told of builds as messages: one form for builders and gateways. Knows no services."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from octavo.v1 import builder_pb2
from octavo_common.jobs.builds import BuildProgress, BuildStage


def progress(value: BuildProgress) -> builder_pb2.BuildProgress:
    """How far a build is."""
    return builder_pb2.BuildProgress(
        stage=value.stage,
        done=value.done,
        total=value.total,
        what=value.what,
        num_stages_done=value.num_stages_done,
        elapsed=duration(value.elapsed_s),
        target=value.target,
    )


def stage(value: BuildStage) -> builder_pb2.BuildStage:
    """A stage that has ended."""
    return builder_pb2.BuildStage(
        stage=value.stage,
        cached=value.cached,
        duration=duration(value.seconds),
        size_bytes=value.size_bytes,
        peak_memory_bytes=value.peak_memory_bytes,
        metrics=value.metrics,
        gates=[
            builder_pb2.BuildGate(limit=gate.limit, value=gate.value, passes=gate.passes, advisory=gate.advisory)
            for gate in value.gates
        ],
        warnings=value.warnings,
        worst=[builder_pb2.TensorLoss(tensor=loss.tensor, sqnr_db=loss.sqnr_db) for loss in value.worst],
        target=value.target,
    )


def duration(value_s: float) -> Duration:
    """Seconds to the nanosecond."""
    message = Duration()
    message.FromNanoseconds(round(value_s * 1e9))
    return message
