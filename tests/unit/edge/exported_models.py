"""One small random model, quantised in two ways and exported: what targets compile."""

from __future__ import annotations

from unit.edge.small_models import adapt, checkpoint, context, optimise

from octavo_edge.artifacts import ExportedModel, QuantisedGraph
from octavo_edge.graph.manifest import SplitOptions
from octavo_edge.recipe_file import load
from octavo_edge.stages.export import Export
from octavo_edge.stages.quantise import Quantise
from octavo_edge.target import CompileOptions

CONTEXT, ARS = 32, (8, 1)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
_COMMON = "calibration: {num_windows: 2}\nevaluation: {num_windows: 1}\n"
RECIPES = {
    "w8": _COMMON + "precision: {kv_cache: int16}\n",
    "w4": _COMMON + "precision: {embedding: int8, blocks: {qtype: int4, granularity: LPBQ, block_size: 32}}\n",
}


def optimised(folder, family="llama", **overrides):
    """The float graphs, and the model as transformers runs it."""
    source, model = checkpoint(folder / "source", family, **(SIZES | overrides))
    adapted, _ = adapt(source, folder / "adapted")
    graphs, _ = optimise(adapted, folder / "optimised", ars=ARS, context_length=CONTEXT)
    return graphs, model


def exported(graphs, folder, recipe, **split):
    """Quantised by the text of a recipe, cut as asked."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe)
    quantised = context(folder / "quantised")
    Quantise(recipe=load(str(folder / "recipe.yaml"))).run(graphs, quantised)
    ctx = context(folder / "exported")
    source = QuantisedGraph(path=quantised.out, digest="0" * 64)
    Export(split=SplitOptions(**split)).run(source, ctx)
    return ExportedModel(path=ctx.out, digest="0" * 64)


def compiled(target, model, folder, **options):
    """The directory that the target filled, and its result."""
    out = folder / "blob"
    out.mkdir(parents=True)
    return out, target.compile(model, CompileOptions(values=options), out)
