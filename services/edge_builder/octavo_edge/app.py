"""Puts a build together: the only module that knows stages and targets by name.

They are imported when a build needs them, since torch alone takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_common.clock import Clock
from octavo_common.errors import Cancelled, FailedPrecondition, InvalidArgument, NotFound, OctavoError
from octavo_common.space import NoSpace
from octavo_edge.artifacts import Bundle, ExportedModel, SourceModel, source_model
from octavo_edge.deliver import check_place, deliver, retract, tree
from octavo_edge.fingerprint import builder_fingerprint
from octavo_edge.pipeline import Pipeline, StageRun, Surroundings, kept_stages, pipeline
from octavo_edge.recipe import Recipe
from octavo_edge.recipe_file import to_plain
from octavo_edge.report import BuildReport, StageEntry, TargetEntry, build_to_json
from octavo_edge.report_page import report_files
from octavo_edge.stage import Cancellation, Progress
from octavo_edge.store import ArtifactStore
from octavo_edge.target import CompileOptions, Target

if TYPE_CHECKING:
    from octavo_edge.models.config import AttentionForm


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """What a user asks. ``ars`` are the numbers of new tokens that a graph is built for."""

    model: Path
    targets: tuple[str, ...]
    recipe: Recipe
    context_length: int
    ars: tuple[int, ...]
    out: Path
    store: Path
    target_options: Mapping[str, CompileOptions] = field(default_factory=dict)  # by target
    attention: AttentionForm = "mha"
    num_parts: int = 1  # of the decoder
    passes: tuple[str, ...] | None = None  # None takes the default ones


def _onnxruntime() -> Target:
    from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

    return OnnxRuntimeTarget()


def _openvino() -> Target:
    from octavo_edge.targets.openvino import OpenVinoTarget

    return OpenVinoTarget()


def _coreml() -> Target:
    from octavo_edge.targets.coreml import CoreMlTarget

    return CoreMlTarget()


def _gguf() -> Target:
    from octavo_edge.targets.gguf import GgufTarget

    return GgufTarget()


def _qnn_htp() -> Target:
    from octavo_edge.targets.qnn_htp.target import QnnHtpTarget

    return QnnHtpTarget()


def _tensorrt_rtx() -> Target:
    from octavo_edge.targets.tensorrt_rtx import TensorRtRtxTarget

    return TensorRtRtxTarget()


def _executorch() -> Target:
    from octavo_edge.targets.executorch import ExecuTorchTarget

    return ExecuTorchTarget()


TARGETS: Mapping[str, Callable[[], Target]] = {
    "onnxruntime": _onnxruntime,
    "qnn-htp": _qnn_htp,
    "openvino": _openvino,
    "coreml": _coreml,
    "gguf": _gguf,
    "tensorrt-rtx": _tensorrt_rtx,
    "executorch": _executorch,
}


def build(
    request: BuildRequest,
    *,
    clock: Clock,
    cancellation: Cancellation,
    on_progress: Callable[[Progress], None],
    on_stage: Callable[[StageRun], None],
) -> BuildReport:
    """Build the model into ``request.out``, with the report as a page and as JSON.

    Several targets get a folder each. One that fails beside others leaves no folder, and the report says why. If a
    stage fails that all need, or every target, the report of those before it is put beside, at ``OUT-failed``.

    Raises:
        OctavoError: What was asked cannot be built; says which part of it.
    """
    begun_s = clock.monotonic()
    check_place(request.out)
    targets = _targets(request)
    source = source_model(request.model)
    shared = assemble(request, source, targets)
    work = _Build(request=request, source=source, clock=clock, begun_s=begun_s, on_stage=on_stage)
    failed = request.out.absolute().with_name(f"{request.out.absolute().name}-failed")
    with ExitStack() as held:
        around = Surroundings(
            store=ArtifactStore(request.store, clock),
            target=next(iter(targets.values())),
            clock=clock,
            cancellation=cancellation,
            on_progress=on_progress,
            on_stage=work.ended,
            held=held,
            builder=builder_fingerprint(),
        )
        _check_room(request, source, shared, around)
        try:
            exported = shared.run(source, around)
            for name, target in targets.items():
                work.build_target(name, target, exported, around)
        except Cancelled:
            raise
        except OctavoError as error:
            # A report that finds no place (somebody's directory has that name, the disk is full) hides no reason.
            with suppress(OctavoError, OSError):
                if work.runs:
                    deliver(failed, copies={}, texts=_report_files(work.report(f"failed: {error.message}"), request))
            raise
        report = work.report()
        deliver(request.out, copies=work.files(), texts=_report_files(report, request))
        retract(failed)
    return report


class TargetsFailed(FailedPrecondition):
    """Several targets were asked for, and each failed for itself; the message has every reason."""

    code = "TARGETS_FAILED"


class _Build:
    """What one build has made so far."""

    def __init__(
        self, *, request: BuildRequest, source: SourceModel, clock: Clock, begun_s: float, on_stage: Callable[..., None]
    ) -> None:
        self._request, self._source, self._clock, self._begun_s = request, source, clock, begun_s
        self._on_stage = on_stage
        self._target = ""  # that is being built now; empty while it is for all
        self.runs: list[StageRun] = []
        self._outcomes: dict[str, TargetEntry] = {}

    def ended(self, run: StageRun) -> None:
        """Note a stage."""
        run = replace(run, target=self._target)
        self.runs.append(run)
        self._on_stage(run)

    def build_target(self, name: str, target: Target, exported: ExportedModel, around: Surroundings) -> None:
        """Compile for one target. Its failure is its own where there are others, and the build's where it is alone.

        Raises:
            OctavoError: It failed and is the only target, or the last of several that failed, all of them.
        """
        self._target = name

        def on_progress(progress: Progress) -> None:
            around.on_progress(replace(progress, target=name))

        try:
            stages = finishing(self._request, name, target)
            stages.run(exported, replace(around, target=target, on_progress=on_progress))
        except (Cancelled, NoSpace):
            raise
        except Exception as error:  # of a vendor's tool-chain, which raises what it likes: the others are built
            self._outcomes[name] = TargetEntry(name=name, outcome=_told(error), failed=True)
            if len(self._request.targets) == 1:
                raise
            is_last = len(self._outcomes) == len(self._request.targets)
            if is_last and all(entry.failed for entry in self._outcomes.values()):
                told = "; ".join(f"{entry.name} {entry.outcome}" for entry in self._outcomes.values())
                raise TargetsFailed(f"no target could be built: {told}", param="target") from error
            return
        told = (run.report.outcome.details.get("outcome") for run in self.runs if run.target == name)
        self._outcomes[name] = TargetEntry(name=name, outcome=str(next(filter(None, told))), failed=False)

    def report(self, outcome: str | None = None) -> BuildReport:
        """All that was made; ``outcome`` if the build as a whole has one of its own."""
        entries = list(self._outcomes.values())
        if outcome is None:
            outcome = entries[0].outcome if len(entries) == 1 else "; ".join(f"{e.name} {e.outcome}" for e in entries)
        request = self._request
        return BuildReport(
            model=request.model.name,
            source_digest=self._source.digest,
            targets=entries or [TargetEntry(name=name, outcome="not begun", failed=True) for name in request.targets],
            settings={
                "context_length": request.context_length,
                "ars": list(request.ars),
                "attention": request.attention,
                "num_parts": request.num_parts,
                "passes": None if request.passes is None else list(request.passes),
                "target_options": {name: dict(given.values) for name, given in request.target_options.items()},
                "recipe": to_plain(_without_folders(request.recipe)),
            },
            outcome=outcome,
            seconds=self._clock.monotonic() - self._begun_s,
            stages=[
                StageEntry(report=run.report, cached=run.cached, gates=run.gates, target=run.target)
                for run in self.runs
            ],
        )

    def files(self) -> dict[str, Path]:
        """What is delivered, by its name in ``out``."""
        files: dict[str, Path] = {}
        for run in self.runs:
            if isinstance(run.artifact, Bundle) and not self._outcomes[run.target].failed:
                prefix = f"{run.target}/" if len(self._request.targets) > 1 else ""
                files |= tree(run.artifact.path, prefix)
        return files


def _without_folders(recipe: Recipe) -> Recipe:
    """The recipe with the names of its texts alone: where they lie on this machine is nobody's business elsewhere."""
    calibration, evaluation = (
        tuple(Path(text).name for text in texts) for texts in (recipe.calibration.texts, recipe.evaluation.texts)
    )
    return replace(
        recipe,
        calibration=replace(recipe.calibration, texts=calibration),
        evaluation=replace(recipe.evaluation, texts=evaluation),
    )


def _told(error: Exception) -> str:
    """How a target ended that failed."""
    if not isinstance(error, OctavoError):
        return f"failed: {type(error).__name__}: {error}"
    return f"{'unavailable' if error.code == 'TARGET_UNAVAILABLE' else 'failed'}: {error.message}"


def check_targets(names: Sequence[str], options: Mapping[str, CompileOptions], recipe: Recipe) -> None:
    """Say what can be said without a model against building for these targets; loads no tool-chain.

    Raises:
        OctavoError: A target does not know an option, or cannot take a precision of the recipe.
    """
    from octavo_edge.stages.quantise import check_target

    for name in names:
        target = TARGETS[name]()
        target.check_options(options.get(name, CompileOptions()))
        check_target(recipe, target.profile)


def _targets(request: BuildRequest) -> dict[str, Target]:
    """The targets by name, with options that they know.

    Raises:
        OctavoError: There is no such target, or no such option.
    """
    if unknown := [name for name in request.targets if name not in TARGETS]:
        hint = f"targets are: {', '.join(TARGETS)}"
        raise NotFound(f"there is no target {unknown[0]!r}", hint=hint, param="target")
    if not request.targets or len(set(request.targets)) != len(request.targets):
        raise InvalidArgument("targets are to be named, each once", hint="--target onnxruntime", param="target")
    if strangers := sorted(set(request.target_options) - set(request.targets)):
        raise InvalidArgument(f"options for {strangers[0]}, which is not built", param="target_options")
    targets = {name: TARGETS[name]() for name in request.targets}
    for name, target in targets.items():
        target.check_options(request.target_options.get(name, CompileOptions()))
    return targets


def assemble(
    request: BuildRequest, source: SourceModel, targets: Mapping[str, Target]
) -> Pipeline[SourceModel, ExportedModel]:
    """The stages that all targets share, after the checks that need no weights.

    Raises:
        OctavoError: The request can never be built.
    """
    from octavo_edge.graph.manifest import SplitOptions
    from octavo_edge.models.size import read_size
    from octavo_edge.models.source import check_source, read_tokenizer
    from octavo_edge.parts.layout import check_split
    from octavo_edge.passes.registry import DEFAULT_PASSES, select_passes
    from octavo_edge.quant.prefix import check_prefix
    from octavo_edge.stages.adapt import Adapt
    from octavo_edge.stages.compile import TargetUnavailable
    from octavo_edge.stages.export import Export
    from octavo_edge.stages.optimise import Optimise
    from octavo_edge.stages.quantise import Quantise

    missing = {name: reasons for name, target in targets.items() if (reasons := target.missing())}
    if len(missing) == len(targets):
        told = "; ".join(f"{name} cannot compile here: {'; '.join(reasons)}" for name, reasons in missing.items())
        raise TargetUnavailable(told, param="target")
    _check_lengths(request.ars, request.context_length, limit=check_source(source.path))
    passes = DEFAULT_PASSES if request.passes is None else request.passes
    select_passes(passes)
    split = SplitOptions(num_decoder_parts=request.num_parts)
    if (size := read_size(source.path)) is not None:
        check_split(split, size.num_layers)
    quantise = Quantise(recipe=request.recipe)
    for target in targets.values():
        quantise.check(target.profile)
    if prefix := request.recipe.prefix:
        vocab_size = None if size is None else size.vocab_size
        tokenizer, context_length = read_tokenizer(source.path), request.context_length
        check_prefix(prefix, tokenizer, vocab_size=vocab_size, context_length=context_length, ars=request.ars)
    return (
        pipeline(Adapt(context_length=request.context_length, attention=request.attention))
        .then(Optimise(context_length=request.context_length, ars=request.ars, passes=passes))
        .then(quantise)
        .then(Export(split=split))
    )


def finishing(request: BuildRequest, name: str, target: Target) -> Pipeline[ExportedModel, Bundle]:
    """The stages that each target has for itself."""
    from octavo_edge.stages.compile import Compile
    from octavo_edge.stages.deploy import Deploy

    options = request.target_options.get(name, CompileOptions())
    deploy = Deploy(model=request.model.name, recipe=request.recipe.name, replays=target.profile.replays)
    return pipeline(Compile(target=target, options=options)).then(deploy)


def _check_room(
    request: BuildRequest, source: SourceModel, shared: Pipeline[SourceModel, ExportedModel], around: Surroundings
) -> None:
    """Refuse what the disk cannot hold, before anything is made."""
    from octavo_edge.models.size import read_size
    from octavo_edge.models.source import read_tokenizer
    from octavo_edge.quant.prefix import count_tokens
    from octavo_edge.room import Asked, needs, require_room

    size = read_size(source.path)
    if size is not None:
        asked = Asked(
            recipe=request.recipe,
            context_length=request.context_length,
            ars=request.ars,
            num_targets=len(request.targets),
            num_prefix_tokens=count_tokens(request.recipe.prefix, read_tokenizer(source.path)),
        )
        kept = kept_stages(shared, source, around.builder, around.store)
        require_room(needs(size, asked), store=request.store, out=request.out, kept=kept)


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


def _report_files(report: BuildReport, request: BuildRequest) -> dict[str, str]:
    return report_files(build_to_json(report), places=(request.store, request.out), keep=str(request.model))
