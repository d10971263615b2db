"""What a build tells the process that has begun it: JSON, one event a line. Both directions; reads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from octavo_common.errors import OctavoError
from octavo_common.jobs.builds import BuildGate, BuildStage, TensorLoss
from octavo_common.jobs.spec import JobFailure
from octavo_edge.pipeline import StageRun
from octavo_edge.stage import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """It was delivered. ``failed_targets`` are those that have failed beside others."""

    outcome: str
    failed_targets: tuple[str, ...] = ()


Event = Progress | BuildStage | Built | JobFailure


class NoEvent(ValueError):
    """A line that is none of ours: a library has printed it."""


def to_line(event: Event) -> str:
    """The event as a line, without its end."""
    if isinstance(event, BuildStage):
        return json.dumps({"event": "stage", **event.to_json()})
    if isinstance(event, JobFailure):
        return json.dumps({"event": "failed", **event.to_json()})
    name = "progress" if isinstance(event, Progress) else "built"
    return json.dumps({"event": name, **asdict(event)})


def from_line(line: str) -> Event:
    """The event of a line.

    Raises:
        NoEvent: The line has none.
    """
    try:
        values = json.loads(line)
        name = values.pop("event")
        return _READERS[name](values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoEvent(line[:200]) from error


def stage_event(run: StageRun) -> BuildStage:
    """What is told of a stage that has ended."""
    report, outcome = run.report, run.report.outcome
    metrics = {name: float(value) for name, value in outcome.metrics.items()}
    gates = [
        BuildGate(
            limit=str(gate),
            value=metrics.get(gate.metric),
            passes=gate.passes(metrics.get(gate.metric)),
            advisory=gate.advisory,
        )
        for gate in run.gates
    ]
    return BuildStage(
        stage=report.stage,
        target=run.target,
        cached=run.cached,
        replaced=run.replaced,
        seconds=report.seconds,
        size_bytes=report.size_bytes,
        peak_memory_bytes=report.peak_rss_bytes,
        metrics=metrics,
        gates=tuple(gates),
        warnings=tuple(outcome.warnings),
        worst=tuple(TensorLoss(tensor=loss.tensor, sqnr_db=float(loss.sqnr_db)) for loss in outcome.worst),
    )


def failure_event(error: Exception) -> JobFailure:
    """Why a build failed, in a form that programs can act on."""
    if isinstance(error, OctavoError):
        return JobFailure(
            code=error.code,
            message=error.message,
            hint=error.hint,
            status=error.status.name,
            param=error.param or "",
        )
    if isinstance(error, MemoryError):
        return JobFailure(
            code="OUT_OF_MEMORY",
            message="there is not enough memory on the builder's machine for this model",
            status="RESOURCE_EXHAUSTED",
        )
    told = " ".join(str(error).split())[:1000]
    return JobFailure(code="BUILDER_FAULT", message=f"a fault of the builder: {type(error).__name__}: {told}")


def _built(values: Mapping[str, Any]) -> Built:
    return Built(outcome=values["outcome"], failed_targets=tuple(values["failed_targets"]))


_READERS: Mapping[str, Any] = {
    "progress": lambda values: Progress(**values),
    "stage": BuildStage.from_json,
    "built": _built,
    "failed": JobFailure.from_json,
}
