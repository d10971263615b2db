"""What a build has brought, as the page shows it: from its report's document, or from its job alone. Pure.

The document (``report.json`` among the build's files) knows more: how each target ended, and tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo import Build, BuildGate, BuildStage, TensorLoss

REPORT, REPORT_PAGE = "report.json", "report.html"
FORMAT, VERSIONS = "octavo-edge-report", (2,)

_CACHE = re.compile(r"^(key|value)_(\d+)(?: |$)")
_WEIGHT = re.compile(r"^(?:.*\.)?layers\.(\d+)\.(.+?)(?:\.\d+)*\.weight$")
_KINDS = {"key": "keys", "value": "values"}


class NotAReport(ValueError):
    """A document that is none of ours, or newer than this console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutcome:
    """How far a build came for a target: ``compiled+run``, ``compiled (run on device)`` or ``failed: ...``."""

    name: str
    outcome: str
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntry:
    """A stage that has ended; ``details`` are its tables."""

    stage: BuildStage
    unsupported_ops: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def title(self) -> str:
        """The stage's name, with its target's if it has one."""
        return self.stage.title

    @property
    def at_fault(self) -> tuple[TensorLoss, ...]:
        """The tensors that lost most, if a gate fails that stops the build."""
        failed = any(not gate.passes and not gate.advisory for gate in self.stage.gates)
        return self.stage.worst if failed else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One build as far as it came."""

    targets: tuple[TargetOutcome, ...]
    stages: tuple[StageEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoss:
    """What is left of something in one layer, in decibels of signal to noise; of several tensors the least."""

    layer: int
    what: str
    sqnr_db: float


def from_document(document: Mapping[str, Any]) -> Report:
    """The report of a ``report.json``. Raises NotAReport."""
    if document.get("format") != FORMAT or document.get("version") not in VERSIONS:
        raise NotAReport(f"format {document.get('format')!r}, version {document.get('version')!r}")
    return Report(
        targets=tuple(TargetOutcome(**target) for target in document["targets"]),
        stages=tuple(_entry(stage) for stage in document["stages"]),
    )


def from_build(build: Build) -> Report:
    """The report of a build whose files cannot be had."""
    if build.result is None:
        return Report(targets=(), stages=())
    told = TargetOutcome(
        name=", ".join(build.targets),
        outcome=build.result.outcome,
        failed=build.job.failure is not None or build.result.outcome.startswith("failed"),
    )
    return Report(targets=(told,), stages=tuple(StageEntry(stage=stage) for stage in build.result.stages))


def cache_losses(entry: StageEntry) -> list[LayerLoss]:
    """What a stage has left of keys and values, layer by layer; without its tables, of those that it names as worst."""
    outputs = entry.details.get("outputs_sqnr_db")
    named = {loss.tensor: loss.sqnr_db for loss in entry.stage.worst} if outputs is None else outputs
    found = ((_CACHE.match(tensor), float(value)) for tensor, value in named.items())
    return _least((int(match[2]), _KINDS[match[1]], value) for match, value in found if match)


def weight_losses(entry: StageEntry) -> list[LayerLoss]:
    """What rounding has left of each layer's weights, by layer; empty for stages that round none."""
    weights: Mapping[str, Any] = entry.details.get("weights_sqnr_db", {})
    found = ((_WEIGHT.match(name), float(value)) for name, value in weights.items())
    return _least((int(match[1]), match[2], value) for match, value in found if match)


def sqnr_metrics(stage: BuildStage) -> dict[str, float]:
    """A stage's metrics in decibels, lowest first."""
    metrics = {name: value for name, value in stage.metrics.items() if "sqnr_db" in name}
    return dict(sorted(metrics.items(), key=lambda item: item[1]))


def _least(rows: Any) -> list[LayerLoss]:
    least: dict[tuple[int, str], float] = {}
    for layer, what, value in rows:
        least[layer, what] = min(value, least.get((layer, what), value))
    return [LayerLoss(layer=layer, what=what, sqnr_db=value) for (layer, what), value in sorted(least.items())]


def _entry(values: Mapping[str, Any]) -> StageEntry:
    outcome: Mapping[str, Any] = values["outcome"]
    stage = BuildStage(
        stage=values["stage"],
        cached=values["cached"],
        duration_s=values["seconds"],
        size_bytes=values["size_bytes"],
        peak_memory_bytes=values["peak_rss_bytes"],
        # What JSON has no number for is a word that float() reads.
        metrics={name: float(value) for name, value in outcome["metrics"].items()},
        gates=tuple(_gate(gate) for gate in values["gates"]),
        warnings=tuple(outcome["warnings"]),
        worst=_losses(outcome["worst"]),
        target=values["target"],
    )
    return StageEntry(
        stage=stage,
        unsupported_ops=tuple(outcome["unsupported_ops"]),
        details=outcome["details"],
    )


def _gate(values: Mapping[str, Any]) -> BuildGate:
    measured = values["value"]
    return BuildGate(**{**values, "value": None if measured is None else float(measured)})


def _losses(rows: Sequence[Mapping[str, Any]]) -> tuple[TensorLoss, ...]:
    return tuple(TensorLoss(tensor=row["tensor"], sqnr_db=float(row["sqnr_db"])) for row in rows)
