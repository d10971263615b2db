"""Reports as JSON: one of every stage beside its artifact, joined to one document of the build. Draws nothing.

Numbers that JSON does not have (an infinite ratio of signal to noise) are the words "inf", "-inf" and "nan".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from octavo_edge.stage import Gate, StageOutcome, StageReport, TensorLoss

FORMAT, VERSION = "octavo-edge-report", 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntry:
    """A stage as the build's document has it; ``target`` is empty for one that all targets share."""

    report: StageReport
    cached: bool
    gates: tuple[Gate, ...]
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEntry:
    """How far a build came for one target: the target's own words, or ``failed: ...`` with the error's sentence."""

    name: str
    outcome: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """One build: what was asked, how it ended and what every stage said.

    ``outcome`` is that of the one target or of each, or ``failed: ...`` with the error's sentence.
    """

    model: str
    source_digest: str
    targets: Sequence[TargetEntry]
    settings: Mapping[str, Any]
    outcome: str
    seconds: float
    stages: Sequence[StageEntry] = field(default_factory=tuple)


def report_to_json(report: StageReport) -> dict[str, Any]:
    """A stage's report as JSON has it."""
    values = asdict(report)
    outcome = values["outcome"]
    # Metrics may come as NumPy's scalars.
    outcome["metrics"] = {key: float(value) for key, value in outcome["metrics"].items()}
    outcome["worst"] = [{"tensor": loss.tensor, "sqnr_db": float(loss.sqnr_db)} for loss in report.outcome.worst]
    return finite(values)


def report_from_json(values: Mapping[str, Any]) -> StageReport:
    """The stage's report that ``report_to_json`` wrote."""
    outcome = values["outcome"]
    return StageReport(
        **{key: value for key, value in values.items() if key != "outcome"},
        outcome=StageOutcome(
            metrics={key: float(value) for key, value in outcome["metrics"].items()},
            warnings=tuple(outcome["warnings"]),
            unsupported_ops=tuple(outcome["unsupported_ops"]),
            versions=outcome["versions"],
            worst=tuple(TensorLoss(tensor=loss["tensor"], sqnr_db=float(loss["sqnr_db"])) for loss in outcome["worst"]),
            details=outcome["details"],
        ),
    )


def build_to_json(build: BuildReport) -> dict[str, Any]:
    """The build's document."""
    return finite(
        {
            "format": FORMAT,
            "version": VERSION,
            "model": build.model,
            "source_digest": build.source_digest,
            "targets": [asdict(target) for target in build.targets],
            "settings": build.settings,
            "outcome": build.outcome,
            "seconds": build.seconds,
            "stages": [_entry_to_json(entry) for entry in build.stages],
        }
    )


def _entry_to_json(entry: StageEntry) -> dict[str, Any]:
    metrics = entry.report.outcome.metrics
    gates = [
        {
            "limit": str(gate),
            "value": metrics.get(gate.metric),
            "passes": gate.passes(metrics.get(gate.metric)),
            "advisory": gate.advisory,
        }
        for gate in entry.gates
    ]
    return report_to_json(entry.report) | {"target": entry.target, "cached": entry.cached, "gates": gates}


def finite(value: Any) -> Any:
    """The value without the floats that JSON lacks, and with lists for tuples."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
