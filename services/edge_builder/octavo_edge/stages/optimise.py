"""Turns the adapted decoder into ONNX graphs over one file of weights, and rewrites them by named passes.

Every pass is checked in ONNX Runtime on random inputs, and the last graphs against the decoder in torch on real text.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

import onnx
import onnxruntime
import onnxscript
import torch
from onnx import ModelProto

from octavo_common.errors import Internal
from octavo_common.text.bundle import TokenizerBundle
from octavo_device.feeds import Decoding
from octavo_device.spec import GraphSpec, graph_file, write_spec
from octavo_edge.artifacts import AdaptedModel, OptimisedGraph, carry
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtModel
from octavo_edge.graph.summary import summarise
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.models.decoder import AdaptedDecoder, load_decoder
from octavo_edge.models.export import OPSET, export_graph
from octavo_edge.models.running import TorchModel, probe_tokens
from octavo_edge.passes.registry import DEFAULT_PASSES, GraphPass, select_passes
from octavo_edge.passes.verify import outputs_of, random_feeds, worst_output
from octavo_edge.stage import Gate, StageContext, StageOutcome, TensorLoss

_PASS_GATE_DB = 100.0
# What no device runs, and what a device's compiler cannot see through.
_REFUSED_OPS = frozenset(
    {"If", "Loop", "Scan", "SequenceAt", "SequenceConstruct", "SplitToSequence", "ConcatFromSequence"}
)


class PassChangedGraph(Internal):
    """A pass gave a graph that computes something else: a fault of ours."""

    code = "PASS_CHANGED_GRAPH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimise:
    """Graphs for each of `ars` numbers of new tokens over a context of `context_length`."""

    context_length: int
    ars: tuple[int, ...]
    passes: tuple[str, ...] = DEFAULT_PASSES
    name: str = "optimise"
    output: type[OptimisedGraph] = OptimisedGraph
    gates: tuple[Gate, ...] = (
        Gate(metric="worst_sqnr_db", at_least=100.0),
        Gate(metric="num_refused_ops", at_most=0),
    )

    @property
    def cache_key(self) -> str:
        """Context, graphs and passes."""
        chosen = [entry.name for entry in select_passes(self.passes)]
        return json.dumps([self.context_length, sorted(set(self.ars)), chosen])

    def run(self, source: AdaptedModel, ctx: StageContext) -> StageOutcome:
        """Export, rewrite, check.

        Raises:
            InvalidArgument: The context is longer than the model's, has no room for an AR, or a pass is not known.
            PassChangedGraph: A pass is at fault.
        """
        passes = select_passes(self.passes)
        decoder = load_decoder(source.path)
        spec = decoder.config.graph_spec(context_length=self.context_length, ars=self.ars)
        write_spec(ctx.out, spec)
        carry(source.path, ctx.out)
        total = len(spec.ars) * (len(passes) + 1) + len(spec.ars)
        done = 0
        rows: list[dict[str, object]] = []
        refused: list[str] = []
        num_nodes: dict[str, float] = {}
        with WeightsWriter(ctx.out) as weights:
            for ar in spec.ars:
                ctx.step(done, total, f"exporting the graph for {ar} tokens")
                model = export_graph(decoder, spec, ar, weights)
                done += 1
                rewriting = _Rewriting(model, spec=spec, ctx=ctx)
                for entry in passes:
                    ctx.step(done, total, f"{entry.name}, {ar} tokens")
                    rows.append({"ar": ar, **rewriting.apply(entry)})
                    done += 1
                _check_interface(rewriting.model, spec, ar)
                refused += _refused(rewriting.model)
                num_nodes[f"num_nodes_ar{ar}"] = len(rewriting.model.graph.node)
                onnx.save(rewriting.model, str(ctx.out / graph_file(ar)))
            size, shared = weights.size_bytes, weights.shared_bytes
        losses = self._losses(source, decoder, spec, ctx, done, total)
        worst = sorted(losses.items(), key=lambda item: item[1])
        return StageOutcome(
            metrics={
                "worst_sqnr_db": worst[0][1],
                "logits_sqnr_db": min(value for name, value in losses.items() if name.startswith("logits")),
                "weights_size_bytes": size,
                "weights_shared_bytes": shared,
                "num_refused_ops": len(refused),
                **num_nodes,
            },
            unsupported_ops=tuple(sorted(set(refused))),
            versions={
                "torch": torch.__version__,
                "onnx": onnx.__version__,
                "onnxscript": onnxscript.__version__,
                "onnxruntime": onnxruntime.__version__,
            },
            worst=tuple(TensorLoss(tensor=name, sqnr_db=value) for name, value in worst[:20]),
            details={"opset": OPSET, "passes": rows, "ops": _ops(ctx, spec)},
        )

    def _losses(
        self, source: AdaptedModel, decoder: AdaptedDecoder, spec: GraphSpec, ctx: StageContext, done: int, total: int
    ) -> dict[str, float]:
        """What each output of each graph lost against torch on real text: two calls each, the second with a past.

        Smaller graphs go on where larger ones stopped, as a generation does, while the context has room.
        """
        bundle = TokenizerBundle.from_directory(source.path)
        tokens = probe_tokens(bundle, spec.context_length, vocab_size=spec.vocab_size)
        reference, exported = TorchModel(decoder, spec), OrtModel(ctx.out)
        decoding, losses = Decoding(spec, reference), dict[str, float]()
        for index, ar in enumerate(spec.ars):
            ctx.step(done + index, total, f"comparing the graph for {ar} tokens with torch")
            if decoding.cache.num_tokens + 2 * ar > spec.context_length:
                decoding = Decoding(spec, reference)
            start = decoding.cache.num_tokens
            num_calls = 2 if start + 2 * ar <= spec.context_length else 1
            for call in decoding.calls(tokens[start : start + num_calls * ar], ars=(ar,)):
                got = exported(ar, call.inputs)
                for name, expected in call.outputs.items():
                    key = f"{name} (ar{ar})"
                    losses[key] = min(losses.get(key, math.inf), sqnr_db(expected, got[name]))
            exported.release(ar)
        ctx.step(total, total)
        return losses


class _Rewriting:
    """One graph on its way through the passes."""

    def __init__(self, model: ModelProto, *, spec: GraphSpec, ctx: StageContext) -> None:
        self.model = model
        self._folder = ctx.out
        self._feeds = random_feeds(model, vocab_size=spec.vocab_size)
        self._expected = outputs_of(model, self._feeds, folder=ctx.out)
        self._softmaxes = _count(model, "Softmax")

    def apply(self, entry: GraphPass) -> dict[str, object]:
        """Run a pass and check it; a row for the report."""
        before = self.model
        after = entry.run(before)
        row = {"pass": entry.name, "nodes_before": len(before.graph.node), "nodes_after": len(after.graph.node)}
        if after.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True):
            return {**row, "changed": False}
        output, loss_db = worst_output(self._expected, outputs_of(after, self._feeds, folder=self._folder))
        if loss_db < _PASS_GATE_DB:
            raise PassChangedGraph(f"the pass {entry.name} changes {output}: {loss_db:.1f} dB")
        if _count(after, "Softmax") != self._softmaxes:
            raise PassChangedGraph(f"the pass {entry.name} leaves another number of Softmax nodes")
        self.model = after
        return {**row, "changed": True, "worst_sqnr_db": loss_db}


def _check_interface(model: ModelProto, spec: GraphSpec, ar: int) -> None:
    for values, tensors in ((model.graph.input, spec.inputs(ar)), (model.graph.output, spec.outputs(ar))):
        found = [(value.name, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)) for value in values]
        assert found == [(tensor.name, tensor.shape) for tensor in tensors], "the graph has the spec's interface"


def _refused(model: ModelProto) -> list[str]:
    """Operators that no target may be given: private ones, functions, control flow and sequences."""
    private = [f"{node.domain}.{node.op_type}" for node in model.graph.node if node.domain not in ("", "ai.onnx")]
    functions = [f"{function.domain}.{function.name}" for function in model.functions]
    return private + functions + [node.op_type for node in model.graph.node if node.op_type in _REFUSED_OPS]


def _count(model: ModelProto, op: str) -> int:
    return sum(node.op_type == op for node in model.graph.node)


def _ops(ctx: StageContext, spec: GraphSpec) -> dict[str, dict[str, int]]:
    """How many nodes of each operator each graph has."""
    files = [graph_file(ar) for ar in spec.ars]
    return {name: dict(sorted(Counter(node.op for node in summarise(ctx.out / name).nodes).items())) for name in files}
