"""Small random checkpoints on their way through the first stages of a build."""

from checkpoints import make_model

from octavo_common.clock import SystemClock
from octavo_edge.artifacts import AdaptedModel, OptimisedGraph, source_model
from octavo_edge.stage import Cancellation, StageContext
from octavo_edge.stages.adapt import Adapt
from octavo_edge.stages.optimise import Optimise
from octavo_edge.targets.onnxruntime import OnnxRuntimeTarget

# What each family has that others have not: biases, norms of heads, a window shorter than the sequence.
FAMILIES = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "mistral": {"sliding_window": 10, "head_dim": 12},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
}


def context(folder, *, cancellation=None, told=None):
    """What a stage is given; `told` collects its progress."""
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    scratch.mkdir()
    return StageContext(
        stage="test",
        out=out,
        scratch=scratch,
        target=OnnxRuntimeTarget(),
        clock=SystemClock(),
        cancellation=cancellation or Cancellation(),
        on_progress=([] if told is None else told).append,
    )


def checkpoint(folder, family="llama", **overrides):
    """The checkpoint as a source, and as transformers runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(folder, family, **(FAMILIES[family] | overrides))
    return source_model(folder), model


def adapt(source, folder, **options):
    """The adapted model, and what the stage told."""
    ctx = context(folder)
    outcome = Adapt(**{"context_length": 64} | options).run(source, ctx)
    return AdaptedModel(path=ctx.out, digest="0" * 64), outcome


def optimise(adapted, folder, **options):
    """The graphs, and what the stage told."""
    ctx = context(folder)
    outcome = Optimise(**{"context_length": 64, "ars": (16, 1)} | options).run(adapted, ctx)
    return OptimisedGraph(path=ctx.out, digest="0" * 64), outcome
