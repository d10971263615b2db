"""Small stages for the edge builder's pipeline: they count words instead of quantising, and can be made to stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from octavo_common.clock import SystemClock
from octavo_edge.artifacts import AdaptedModel, ExportedModel, OptimisedGraph, QuantisedGraph, SourceModel, source_model
from octavo_edge.pipeline import Pipeline, Surroundings, pipeline
from octavo_edge.stage import Cancellation, Gate, StageContext, StageOutcome, TensorLoss
from octavo_edge.store import ArtifactStore
from octavo_edge.target import CompiledAndRun, CompileOptions, CompileResult, GraphSummary, TargetProfile


class NoTarget:
    """A target that takes everything."""

    profile = TargetProfile(name="none")

    def missing(self) -> list[str]:
        return []

    def check(self, graph: GraphSummary) -> list:
        return []

    def check_options(self, options: CompileOptions) -> None:
        pass

    def compile(self, model: ExportedModel, options: CompileOptions, out: Path) -> CompileResult:
        return CompileResult(outcome=CompiledAndRun())


@dataclass
class Words:
    """Splits the source into one word a line."""

    runs: int = 0
    name: str = "words"
    output: type[AdaptedModel] = AdaptedModel
    cache_key: str = "1"
    gates: tuple[Gate, ...] = ()

    def run(self, source: SourceModel, ctx: StageContext) -> StageOutcome:
        self.runs += 1
        words = source.path.read_text().split()
        (ctx.out / "words.txt").write_text("\n".join(words))
        return StageOutcome(metrics={"num_words": len(words)})


@dataclass
class Lengths:
    """Writes the length of every word, a line at a time; ``at_line`` is called before each."""

    at_line: Callable[[int, Path], None] = lambda number, file: None
    runs: int = 0
    name: str = "lengths"
    output: type[OptimisedGraph] = OptimisedGraph
    cache_key: str = "1"
    gates: tuple[Gate, ...] = ()

    def run(self, source: AdaptedModel, ctx: StageContext) -> StageOutcome:
        self.runs += 1
        words = (source.path / "words.txt").read_text().split("\n")
        file = ctx.out / "deep" / "lengths.txt"
        file.parent.mkdir()
        for number, word in enumerate(words):
            self.at_line(number, file)
            ctx.step(number, len(words), word)
            with file.open("a") as lines:
                lines.write(f"{len(word)}\n")
        (ctx.scratch / "thrown-away").write_text("x")
        return StageOutcome(metrics={"num_words": len(words)}, warnings=("few words",))


@dataclass
class Total:
    """Adds the lengths."""

    gates: tuple[Gate, ...] = ()
    runs: int = 0
    name: str = "total"
    output: type[QuantisedGraph] = QuantisedGraph
    cache_key: str = "1"

    def run(self, source: OptimisedGraph, ctx: StageContext) -> StageOutcome:
        self.runs += 1
        lengths = [int(line) for line in (source.path / "deep" / "lengths.txt").read_text().split()]
        (ctx.out / "total.json").write_text(json.dumps(sum(lengths)))
        worst = (TensorLoss(tensor="layers.1.down_proj", sqnr_db=3.25), TensorLoss(tensor="lm_head", sqnr_db=9.0))
        return StageOutcome(metrics={"total_characters": sum(lengths)}, worst=worst)


@dataclass
class World:
    """A folder with a source, a store, and what a run needs."""

    folder: Path
    text: str = "the quick brown fox"
    builder: str = "1"
    cancellation: Cancellation = field(default_factory=Cancellation)
    runs: list = field(default_factory=list)
    progress: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        if not self.source_file.exists():
            self.source_file.write_text(self.text)
        self.store = ArtifactStore(self.folder / "store", SystemClock())

    @property
    def source_file(self) -> Path:
        return self.folder / "model.gguf"

    def run(self, stages: Pipeline[SourceModel, QuantisedGraph]) -> int:
        """The total that the pipeline comes to."""
        with ExitStack() as held:
            around = Surroundings(
                store=self.store,
                target=NoTarget(),
                clock=SystemClock(),
                cancellation=self.cancellation,
                on_progress=self.progress.append,
                on_stage=self.runs.append,
                held=held,
                builder=self.builder,
            )
            artifact = stages.run(source_model(self.source_file), around)
            return json.loads((artifact.path / "total.json").read_text())


def counting(words: Words | None = None, lengths: Lengths | None = None, total: Total | None = None):
    """The three stages in their order."""
    return pipeline(words or Words()).then(lengths or Lengths()).then(total or Total())
