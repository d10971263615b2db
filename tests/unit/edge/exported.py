"""The hand-written decoder on its way through quantising and exporting, as the stages do it."""

from pathlib import Path

from fakes.small_tokenizers import byte_level_tokenizer
from unit.edge.small_models import context
from unit.edge.toy_graph import write_toy

from octavo_common.text.bundle import TokenizerBundle
from octavo_edge.artifacts import ExportedModel, OptimisedGraph, QuantisedGraph
from octavo_edge.graph.manifest import SplitOptions
from octavo_edge.recipe import Calibration, Evaluation, Recipe
from octavo_edge.stage import StageOutcome
from octavo_edge.stages.export import Export
from octavo_edge.stages.quantise import Quantise

VOCAB = 400
FAST = Recipe(name="fast", calibration=Calibration(num_windows=4), evaluation=Evaluation(num_windows=1))


def optimised_toy(folder: Path, **options: object) -> OptimisedGraph:
    """Float graphs of two layers, with a tokenizer."""
    write_toy(folder, vocab=VOCAB, **options)
    bundle = TokenizerBundle(
        tokenizer_json=byte_level_tokenizer().to_str(),
        chat_template=None,
        bos_token=None,
        eos_token="</s>",
        eos_ids=(1,),
    )
    bundle.to_directory(folder, model_type="llama")
    return OptimisedGraph(path=folder, digest="0" * 64)


def quantised(source: OptimisedGraph, folder: Path, recipe: Recipe = FAST) -> QuantisedGraph:
    """The graphs in QDQ form."""
    ctx = context(folder)
    Quantise(recipe=recipe).run(source, ctx)
    return QuantisedGraph(path=ctx.out, digest="1" * 64)


def exported(
    source: QuantisedGraph, folder: Path, split: SplitOptions | None = None
) -> tuple[ExportedModel, StageOutcome]:
    """The parts, and what the stage told."""
    ctx = context(folder)
    outcome = Export(split=split or SplitOptions()).run(source, ctx)
    return ExportedModel(path=ctx.out, digest="2" * 64), outcome
