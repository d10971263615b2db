"""Puts a build together: the only module that knows stages and targets by name.

They are imported when a build needs them, since torch alone takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from octavo_common.clock import Clock
from octavo_common.errors import Cancelled, InvalidArgument, NotFound, OctavoError
from octavo_edge.artifacts import AdaptedModel, CompiledBlob, QuantisedGraph, SourceModel, source_model
from octavo_edge.deliver import check_place, deliver, retract, tree
from octavo_edge.fingerprint import builder_fingerprint
from octavo_edge.pipeline import Pipeline, StageRun, Surroundings, pipeline
from octavo_edge.recipe import Recipe
from octavo_edge.recipe_file import to_plain
from octavo_edge.report import BuildReport, StageEntry, build_to_json
from octavo_edge.report_page import page
from octavo_edge.stage import Cancellation, Progress
from octavo_edge.store import ArtifactStore
from octavo_edge.target import Target

# Of the adapted model the device gets the tokenizer and the settings; the weights are in the graphs.
_NOT_DELIVERED = "weights.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What a user asks. ``ars`` are the numbers of new tokens that a graph is built for."""

    model: Path
    target: str
    recipe: Recipe
    context_length: int
    ars: tuple[int, ...]
    out: Path
    store: Path


def _onnxruntime() -> Target:
    from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

    return OnnxRuntimeTarget()


TARGETS: Mapping[str, Callable[[], Target]] = {"onnxruntime": _onnxruntime}


def build(
    request: BuildRequest,
    *,
    clock: Clock,
    cancellation: Cancellation,
    on_progress: Callable[[Progress], None],
    on_stage: Callable[[StageRun], None],
) -> BuildReport:
    """Build the model into ``request.out``, with the report as a page and as JSON.

    If a stage fails, the report of those before it is put beside, at ``OUT-failed``.

    Raises:
        OctavoError: What was asked cannot be built; says which part of it.
    """
    begun_s = clock.monotonic()
    check_place(request.out)
    if request.target not in TARGETS:
        raise NotFound(
            f"there is no target {request.target!r}", hint=f"targets are: {', '.join(TARGETS)}", param="target"
        )
    source = source_model(request.model)
    target = TARGETS[request.target]()
    stages = assemble(request, source, target)
    runs: list[StageRun] = []

    def ended(run: StageRun) -> None:
        runs.append(run)
        on_stage(run)

    def told(outcome: str) -> BuildReport:
        return BuildReport(
            model=request.model.name,
            source_digest=source.digest,
            target=request.target,
            settings={
                "context_length": request.context_length,
                "ars": list(request.ars),
                "recipe": to_plain(request.recipe),
            },
            outcome=outcome,
            seconds=clock.monotonic() - begun_s,
            stages=[StageEntry(report=run.report, cached=run.cached, gates=run.gates) for run in runs],
        )

    failed = request.out.absolute().with_name(f"{request.out.absolute().name}-failed")
    with ExitStack() as held:
        around = Surroundings(
            store=ArtifactStore(request.store, clock),
            target=target,
            clock=clock,
            cancellation=cancellation,
            on_progress=on_progress,
            on_stage=ended,
            held=held,
            builder=builder_fingerprint(),
        )
        try:
            stages.run(source, around)
        except Cancelled:
            raise
        except OctavoError as error:
            # A report that finds no place (somebody's directory has that name, the disk is full) hides no reason.
            with suppress(OctavoError, OSError):
                if runs:
                    deliver(failed, copies={}, texts=_report_files(told(f"failed: {error.message}")))
            raise
        report = told(str(runs[-1].report.outcome.details["outcome"]))
        deliver(request.out, copies=_files_of(runs), texts=_report_files(report))
        retract(failed)
    return report


def assemble(request: BuildRequest, source: SourceModel, target: Target) -> Pipeline[SourceModel, CompiledBlob]:
    """The stages of a build, after the checks that need no weights.

    Raises:
        OctavoError: The request can never be built.
    """
    from octavo_edge.models.source import check_source
    from octavo_edge.stages.adapt import Adapt
    from octavo_edge.stages.compile import Compile, TargetUnavailable
    from octavo_edge.stages.optimise import Optimise
    from octavo_edge.stages.quantise import Quantise

    if missing := target.missing():
        raise TargetUnavailable(f"{request.target} cannot compile here: {'; '.join(missing)}", param="target")
    _check_lengths(request.ars, request.context_length, limit=check_source(source.path))
    quantise = Quantise(recipe=request.recipe)
    quantise.check(target.profile)
    return (
        pipeline(Adapt(context_length=request.context_length))
        .then(Optimise(context_length=request.context_length, ars=request.ars))
        .then(quantise)
        .then(Compile(target=target))
    )


def _check_lengths(ars: Sequence[int], context_length: int, *, limit: int) -> None:
    if context_length > limit:
        raise InvalidArgument(
            f"a context of {context_length} tokens is longer than the model's, which is {limit}",
            hint=f"--context-length {limit} or less",
            param="context_length",
        )
    if not ars or min(ars) < 1 or max(ars) >= context_length or len(set(ars)) != len(ars):
        raise InvalidArgument(
            f"--ar {','.join(map(str, ars))} does not fit a context of {context_length} tokens",
            hint="numbers from 1 to one less than the context's, each once: --ar 128,1",
            param="ar",
        )
    if max(ars) < 2:
        raise InvalidArgument(
            "--ar 1 alone cannot be judged: a prediction is compared with the token after it, in one call",
            hint="a larger graph too, which also reads prompts faster: --ar 128,1",
            param="ar",
        )


def _files_of(runs: Sequence[StageRun]) -> dict[str, Path]:
    """What a device needs, and the encodings, by their names in the delivery."""
    files: dict[str, Path] = {}
    for run in runs:
        found = tree(run.artifact.path)
        if isinstance(run.artifact, AdaptedModel):
            files |= {name: path for name, path in found.items() if name != _NOT_DELIVERED}
        elif isinstance(run.artifact, QuantisedGraph):
            files |= {name: path for name, path in found.items() if path.suffix == ".json"}
        elif isinstance(run.artifact, CompiledBlob):
            files |= found
    return files


def _report_files(report: BuildReport) -> dict[str, str]:
    document = build_to_json(report)
    return {"report.json": json.dumps(document, indent=1) + "\n", "report.html": page(document)}
