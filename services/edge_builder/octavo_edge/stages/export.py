"""Cuts the quantised graphs into parts with their encodings and test vectors, and checks that cutting changes nothing.

Knows no tool-chain.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from octavo_common.errors import FailedPrecondition
from octavo_common.text.bundle import TokenizerBundle
from octavo_device.feeds import Arrays
from octavo_device.prefix import read_prefix
from octavo_device.spec import GraphSpec, graph_file, read_spec, write_spec
from octavo_edge.artifacts import ExportedModel, QuantisedGraph, carry
from octavo_edge.graph.manifest import ExportManifest, Part, PartGraph, PartTensor, SplitOptions, write_manifest
from octavo_edge.graph.metrics import sqnr_db
from octavo_edge.graph.runtime import OrtGraph
from octavo_edge.graph.summary import summarise
from octavo_edge.graph.weights import WEIGHTS_FILE
from octavo_edge.models.running import probe_tokens
from octavo_edge.parts.borders import CannotSplit
from octavo_edge.parts.encodings import split_encodings
from octavo_edge.parts.layout import PartPlan, plan_parts
from octavo_edge.parts.splitting import PartModel, Splitter
from octavo_edge.parts.vectors import NUM_CALLS, read_vectors, vectors_file, whole_inputs, write_vectors
from octavo_edge.quant.encodings import PerTensor, read
from octavo_edge.quant.errors import CannotQuantise
from octavo_edge.quant.prefix import read_place
from octavo_edge.quant.topology import Topology
from octavo_edge.stage import Gate, StageContext, StageOutcome, TensorLoss

_NUM_WORST = 20


class NotSplittable(FailedPrecondition):
    """The graph cannot be cut between its layers; names the tensor."""

    code = "NOT_SPLITTABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """QDQ graphs to parts in QDQ form, all on one file of weights."""

    split: SplitOptions = field(default_factory=SplitOptions)
    name: str = "export"
    output: type[ExportedModel] = ExportedModel
    gates: tuple[Gate, ...] = (
        Gate(metric="worst_sqnr_db", at_least=100.0),
        Gate(metric="num_private_ops", at_most=0),
    )

    @property
    def cache_key(self) -> str:
        """Where the model is cut."""
        return json.dumps(asdict(self.split), sort_keys=True)

    def run(self, source: QuantisedGraph, ctx: StageContext) -> StageOutcome:
        """Cut, write, run for the vectors, and compare with the graphs before the cut.

        Raises:
            InvalidArgument: More parts than layers.
            NotSplittable: There is no tensor that all of a layer's successors come from, or the graphs differ.
        """
        work = _Work(source=source.path, ctx=ctx, spec=read_spec(source.path))
        plans = plan_parts(self.split, work.spec.num_layers)
        try:
            manifest = work.write(plans)
        except (CannotSplit, CannotQuantise) as error:
            raise NotSplittable(str(error)) from error
        tokens = probe_tokens(
            TokenizerBundle.from_directory(source.path), work.spec.context_length, vocab_size=work.spec.vocab_size
        )
        first = write_vectors(ctx.out, manifest, work.spec, tokens, work.told("running"))
        losses = work.compare(manifest, tokens, first)
        return _outcome(ctx.out, manifest, losses)


class _Work:
    """One run of the stage."""

    def __init__(self, *, source: Path, ctx: StageContext, spec: GraphSpec) -> None:
        self._source, self._ctx, self.spec = source, ctx, spec
        self._done, self._total = 0, 0

    def write(self, plans: list[PartPlan]) -> ExportManifest:
        """All files but the vectors."""
        spec, out = self.spec, self._ctx.out
        # Cutting, running for the vectors (of the largest AR twice), running the whole.
        self._total = (2 * len(plans) + NUM_CALLS) * len(spec.ars) + len(plans)
        # A copy, no link: ONNX refuses data that has several names.
        shutil.copyfile(self._source / WEIGHTS_FILE, out / WEIGHTS_FILE)
        write_spec(out, spec)
        carry(self._source, out)
        prefix = read_place(self._source)
        if prefix is not None:
            shutil.copyfile(self._source / prefix.file, out / prefix.file)
        reference = Topology(self._source / graph_file(spec.ars[0]))
        graphs: dict[str, list[PartGraph]] = {plan.name: [] for plan in plans}
        activations: dict[str, dict[str, PerTensor]] = {}
        for ar in spec.ars:
            graph = reference if ar == spec.ars[0] else Topology(self._source / graph_file(ar))
            splitter = Splitter(graph, reference, spec, ar)
            for plan in plans:
                self.told("cutting")(f"{plan.name}, {ar} tokens")
                part = splitter.part(plan)
                if plan.name not in activations:
                    activations[plan.name] = self._write_encodings(plan.name, part)
                graphs[plan.name].append(self._write_graph(plan.name, ar, part, activations[plan.name]))
        parts = tuple(
            Part(
                name=plan.name,
                kind=plan.kind,
                layers=plan.layers,
                graphs=tuple(graphs[plan.name]),
                encodings=f"{plan.name}.encodings.json",
                encodings_v1=f"{plan.name}.encodings_v1.json",
            )
            for plan in plans
        )
        manifest = ExportManifest(context_length=spec.context_length, ars=spec.ars, parts=parts, prefix=prefix)
        write_manifest(out, manifest)
        return manifest

    def _write_encodings(self, name: str, part: PartModel) -> dict[str, PerTensor]:
        """Both schemas; returns the encodings of activations."""
        for before, after in (("encodings.json", "encodings"), ("encodings_v1.json", "encodings_v1")):
            document = json.loads((self._source / before).read_text())
            (self._ctx.out / f"{name}.{after}.json").write_text(json.dumps(split_encodings(document, part)))
        return dict(read(self._ctx.out / f"{name}.encodings.json").activations)

    def _write_graph(self, name: str, ar: int, part: PartModel, activations: dict[str, PerTensor]) -> PartGraph:
        file = f"{name}_ar{ar}.onnx"
        onnx.save(part.model, str(self._ctx.out / file))
        graph = part.model.graph
        return PartGraph(
            ar=ar,
            file=file,
            vectors=vectors_file(name, ar),
            inputs=tuple(_tensor(value, activations) for value in graph.input),
            outputs=tuple(_tensor(value, activations) for value in graph.output),
        )

    def compare(self, manifest: ExportManifest, tokens: list[int], first: Arrays) -> dict[str, float]:
        """What each output of each graph lost against the graph before the cut, at worst of all calls."""
        losses: dict[str, float] = {}
        prefix = read_prefix(self._ctx.out, manifest.prefix)
        for ar in self.spec.ars:
            whole = OrtGraph(self._source / graph_file(ar))
            vectors = [read_vectors(self._ctx.out, part.graph(ar)) for part in manifest.parts]
            for call in range(NUM_CALLS):
                self.told("comparing with the whole graph")(f"{ar} tokens")
                expected = whole.run(whole_inputs(self.spec, tokens, ar, call, first, prefix))
                for calls in vectors:
                    _, outputs = next(calls)
                    for name in outputs.keys() & expected.keys():
                        key = f"{name} (ar{ar})"
                        losses[key] = min(losses.get(key, math.inf), sqnr_db(expected[name], outputs[name]))
        self._ctx.step(self._total, self._total)
        return losses

    def told(self, doing: str) -> Any:
        """Something to call before each step with what it is about."""

        def step(what: str) -> None:
            self._ctx.step(self._done, self._total, f"{doing} {what}")
            self._done += 1

        return step


def _tensor(value: onnx.ValueInfoProto, activations: dict[str, PerTensor]) -> PartTensor:
    kind, encoding = value.type.tensor_type, activations.get(value.name)
    return PartTensor(
        name=value.name,
        shape=tuple(dim.dim_value for dim in kind.shape.dim),
        dtype=onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name,
        scale=None if encoding is None else encoding.scale,
        zero_point=None if encoding is None else encoding.zero_point,
        quantised_dtype=None if encoding is None else encoding.grid.name,
    )


def _outcome(out: Path, manifest: ExportManifest, losses: dict[str, float]) -> StageOutcome:
    worst = sorted(losses.items(), key=lambda item: item[1])
    rows: list[dict[str, object]] = []
    num_private = 0
    for part in manifest.parts:
        for graph in part.graphs:
            summary = summarise(out / graph.file)
            num_private += sum(node.domain not in ("", "ai.onnx") for node in summary.nodes)
            rows.append(
                {
                    "graph": graph.file,
                    "layers": "-".join(map(str, part.layers)) if part.kind == "decoder" else "",
                    "nodes": len(summary.nodes),
                    "inputs": len(graph.inputs),
                    "outputs": len(graph.outputs),
                    "weights_mb": summary.weight_bytes / 1e6,
                    "vectors_mb": (out / graph.vectors).stat().st_size / 1e6,
                }
            )
    return StageOutcome(
        metrics={
            "worst_sqnr_db": worst[0][1],
            "num_parts": float(len(manifest.parts)),
            "num_graphs": float(len(rows)),
            "num_private_ops": float(num_private),
            "weights_size_bytes": float((out / WEIGHTS_FILE).stat().st_size),
            "vectors_size_bytes": float(sum(path.stat().st_size for path in (out / "vectors").iterdir())),
        },
        versions={"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__},
        worst=tuple(TensorLoss(tensor=name, sqnr_db=value) for name, value in worst[:_NUM_WORST]),
        details={
            "outputs_against_the_whole_graph": _by_graph(losses, manifest),
            "graphs": rows,
            "weights_shared_between_graphs": _sharing(out, manifest),
        },
    )


def _by_graph(losses: dict[str, float], manifest: ExportManifest) -> list[dict[str, object]]:
    """The worst output of each size of graph."""
    rows: list[dict[str, object]] = []
    for ar in manifest.ars:
        found = {name: db for name, db in losses.items() if name.endswith(f"(ar{ar})")}
        name, worst = min(found.items(), key=lambda item: item[1])
        rows.append({"new_tokens": ar, "calls": NUM_CALLS, "outputs": len(found), "worst": name, "sqnr_db": worst})
    return rows


def _sharing(out: Path, manifest: ExportManifest) -> list[dict[str, object]]:
    """Of each part, which bytes all of its graphs point at, which only some, and which each has for itself."""
    rows: list[dict[str, object]] = []
    for part in manifest.parts:
        places = [_places(out / graph.file) for graph in part.graphs]
        common, every = set.intersection(*places), set.union(*places)
        rows.append(
            {
                "part": part.name,
                "graphs": len(places),
                "shared_by_all_mb": sum(length for _, length in common) / 1e6,
                "shared_by_some_mb": sum(length for _, length in every - common) / 1e6,
                "of_each_alone_mb": sum((out / graph.file).stat().st_size for graph in part.graphs) / 1e6,
            }
        )
    return rows


def _places(path: Path) -> set[tuple[int, int]]:
    """Offset and length of everything that a graph points at in the file of weights."""
    places: set[tuple[int, int]] = set()
    for tensor in onnx.load(str(path), load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            places.add((int(entries["offset"]), int(entries["length"])))
    return places
