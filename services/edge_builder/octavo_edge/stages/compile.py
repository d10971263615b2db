"""Lets the target's tool-chain make what a device loads. Knows no tool-chain."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from octavo_common.errors import FailedPrecondition
from octavo_edge.artifacts import CompiledBlob, ExportedModel
from octavo_edge.bundle.table import write_table
from octavo_edge.fingerprint import builder_versions
from octavo_edge.graph.blob import read_blob
from octavo_edge.graph.manifest import ExportManifest, read_manifest
from octavo_edge.graph.summary import summarise
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.stage import Gate, StageContext, StageOutcome
from octavo_edge.target import CompileOptions, Target, Unavailable


class TargetUnavailable(FailedPrecondition):
    """The tool-chain cannot make a binary here; the message has every reason."""

    code = "TARGET_UNAVAILABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """An exported model to a target's binary."""

    target: Target
    options: CompileOptions = field(default_factory=CompileOptions)
    name: str = "compile"
    output: type[CompiledBlob] = CompiledBlob
    gates: tuple[Gate, ...] = ()

    @property
    def cache_key(self) -> str:
        """The tool-chain with its version, and what it was asked."""
        profile = self.target.profile
        return json.dumps([profile.name, profile.version, dict(self.options.values)], sort_keys=True)

    def run(self, source: ExportedModel, ctx: StageContext) -> StageOutcome:
        """Compile.

        Raises:
            TargetUnavailable: No binary was made.
        """
        name = self.target.profile.name
        ctx.step(0, 1)
        if missing := self.target.missing():
            raise TargetUnavailable(f"{name} cannot compile here: {'; '.join(missing)}", param="target")
        blob = ctx.out / "blob"
        blob.mkdir()
        result = self.target.compile(source, self.options, blob)
        if isinstance(result.outcome, Unavailable):
            raise TargetUnavailable(f"{name}: {result.outcome.reason}", param="target")
        # Graphs and weights are the target's business; it took what the device needs of them.
        export = ctx.out / "export"
        shutil.copytree(source.path, export, ignore=shutil.ignore_patterns("*.onnx", WEIGHTS_FILE))
        manifest = read_manifest(source.path)
        table = write_table(source.path, manifest, blob, export)
        told = {
            "target": name,
            "outcome": str(result.outcome),
            "options": dict(self.options.values),
            "versions": {**builder_versions(), **result.versions},
            "embedding": None if table is None else asdict(table),
        }
        (ctx.out / "compiled.json").write_text(json.dumps(told, indent=1) + "\n")
        return StageOutcome(
            metrics=result.metrics,
            warnings=result.warnings,
            versions=result.versions,
            details={"outcome": str(result.outcome), **result.details, "ops": _ops(source, manifest, blob)},
        )


def _ops(source: ExportedModel, manifest: ExportManifest, blob: Path) -> list[dict[str, object]]:
    """How many nodes of each operator the target was given, by part; what it was not given is done on the host."""
    taken = read_blob(blob).graphs
    counts = {
        part.name: Counter(node.op for node in summarise(source.path / part.graphs[0].file).nodes)
        for part in manifest.parts
        if part.name in taken
    }
    ops = sorted({op for count in counts.values() for op in count})
    return [{"operator": op, **{part: count[op] for part, count in counts.items()}} for op in ops]
