"""Gives weights and activations their grids, writes the graphs in QDQ form, and measures what that cost.

Knows no tool-chain beyond what the target says of itself.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from octavo_common.errors import FailedPrecondition
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.prefix import NO_PREFIX, Prefix
from octavo_device.spec import GraphSpec, graph_file, read_spec, write_spec
from octavo_edge.artifacts import OptimisedGraph, QuantisedGraph, carry
from octavo_edge.graph.weights import WEIGHTS_FILE, WeightsWriter
from octavo_edge.quant import biases
from octavo_edge.quant.batches import BatchStore, next_inputs, texts_behind, texts_behind_nothing
from octavo_edge.quant.calibrate import quantise_graph
from octavo_edge.quant.corpus import Purpose, documents, texts_digest
from octavo_edge.quant.derived import derived_sqnr_db
from octavo_edge.quant.encodings import Encodings, write_v1, write_v2
from octavo_edge.quant.errors import CannotQuantise
from octavo_edge.quant.evaluation import Comparison, Outputs, compare
from octavo_edge.quant.mixed import Choice, choose
from octavo_edge.quant.placement import Role, place
from octavo_edge.quant.plan import Quantised, QuantPlan
from octavo_edge.quant.planning import plan_of
from octavo_edge.quant.prefix import PrefixGain, make_prefix, text_of, token_ids, write_prefix
from octavo_edge.quant.qdq import write_qdq
from octavo_edge.quant.segments import run_by_pieces
from octavo_edge.quant.topology import Topology, corresponding_names
from octavo_edge.recipe import MixedPrecision, Recipe, RecipeInvalid, WeightPrecision
from octavo_edge.report import finite
from octavo_edge.stage import Gate, StageContext, StageOutcome, TensorLoss, gates_of
from octavo_edge.target import TargetProfile

_FEW_BATCHES = 50
_NUM_WORST = 10


class NotQuantisable(FailedPrecondition):
    """The graph cannot be quantised as the recipe asks; names the tensor or node."""

    code = "NOT_QUANTISABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantise:
    """Float graphs to QDQ graphs with one file of integers, as a recipe asks."""

    recipe: Recipe
    name: str = "quantise"
    output: type[QuantisedGraph] = QuantisedGraph

    @property
    def cache_key(self) -> str:
        """The recipe without gates, and the words of its texts. NoUsableData if they cannot be read."""
        return json.dumps([self.recipe.fingerprint(), *self._words()])

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Those of the recipe."""
        return gates_of(self.recipe.gates)

    def check(self, profile: TargetProfile) -> None:
        """What can be told before anything is built, and has to be told of a result that is there already.

        Raises:
            RecipeInvalid: The target cannot take a precision, or a prefix.
            NoUsableData: A text cannot be read.
        """
        check_target(self.recipe, profile)
        self._words()

    def _words(self) -> tuple[str, str]:
        calibration, evaluation = self.recipe.calibration.texts, self.recipe.evaluation.texts
        return texts_digest(Purpose.CALIBRATION, calibration), texts_digest(Purpose.EVALUATION, evaluation)

    def run(self, source: OptimisedGraph, ctx: StageContext) -> StageOutcome:
        """Calibrate on text, round weights layer by layer, write, and compare on other text.

        Raises:
            NoUsableData: There is no text to calibrate with or to judge by.
            RecipeInvalid: The target cannot take a precision or a prefix, or the prefix is none of the model's.
            NotQuantisable: A tensor is not finite, blocks do not fit a weight, or the graphs of a model differ.
        """
        check_target(self.recipe, ctx.target.profile)
        warnings: list[str] = []
        tokenizer = Tokenizer(TokenizerBundle.from_directory(source.path))
        work = _Work(source=source.path, recipe=self.recipe, ctx=ctx, tokenizer=tokenizer, prefix=NO_PREFIX)
        work = replace(work, prefix=work.make_prefix())
        ctx.step(0, 4, "reading text")
        batches, reference, gain = work.run_float()
        if len(batches) < _FEW_BATCHES:
            warnings.append(f"{len(batches)} calibration batches; under {_FEW_BATCHES} ranges are a guess")
        try:
            plan, choice = work.mix(plan_of(self.recipe), batches)
            quantised = work.quantise(plan, batches)
            work.write(quantised)
            warnings += biases.warnings_of(quantised.raised)
        except CannotQuantise as e:
            raise NotQuantisable(str(e)) from e
        metrics = {
            "num_calibration_batches": float(len(batches)),
            **{f"logits_sqnr_db_ar{ar}": value for ar, value in work.compare_derived(reference).items()},
        }
        details: dict[str, Any] = {} if choice is None else {"sensitivity": choice.table()}
        if gain is not None:
            metrics |= gain.metrics()
            details["prefix"] = work.prefix_told()
        return _outcome(ctx.out, work.compare(reference), quantised, metrics, details, warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One run of the stage."""

    source: Path
    recipe: Recipe
    ctx: StageContext
    tokenizer: Tokenizer
    prefix: Prefix  # stands before every text

    def make_prefix(self) -> Prefix:
        """The recipe's prefix with its keys and values."""
        spec = self._spec()
        ids = token_ids(self.recipe.prefix, self.tokenizer, vocab_size=spec.vocab_size)

        def on_piece(done: int, total: int) -> None:
            self.ctx.step(done, total, "running the float graph on the prefix")

        return make_prefix(self.source, spec, ids, self.tokenizer, on_piece)

    def prefix_told(self) -> dict[str, Any]:
        """For the report."""
        ids = self.prefix.token_ids
        return {"tokens": ", ".join(map(str, ids)), "text": text_of(ids, self.tokenizer), "num_tokens": len(ids)}

    def run_float(self) -> tuple[BatchStore, Outputs, PrefixGain | None]:
        """Batches to calibrate with, what the float graph says of the texts to judge by, and what a prefix brings."""

        def encode(text: str) -> list[int]:
            return self.tokenizer.encode(text, add_special=False)

        spec = self._spec()
        ar, wanted = spec.ars[0], self.recipe.calibration.num_windows
        # Half of the windows have a past besides the prefix, where the context has room for one.
        length = 2 * ar if self._has_room(spec) else ar
        stretches = documents(
            Purpose.CALIBRATION,
            self.recipe.calibration.texts,
            encode,
            length=length,
            num=-(-wanted * ar // length),
        )
        judged = documents(
            Purpose.EVALUATION,
            self.recipe.evaluation.texts,
            encode,
            length=ar,
            num=self.recipe.evaluation.num_windows,
        )
        return self._batches(spec, stretches, judged)

    def _batches(
        self, spec: GraphSpec, stretches: Sequence[Sequence[int]], judged: Sequence[Sequence[int]]
    ) -> tuple[BatchStore, Outputs, PrefixGain | None]:
        ar, wanted, scratch = spec.ars[0], self.recipe.calibration.num_windows, self.ctx.scratch
        reference = Outputs(scratch / "reference", judged)
        firsts = Outputs(scratch / "firsts", [stretch[:ar] for stretch in stretches])
        batches = BatchStore(scratch / "batches", spec, ar)
        begun = texts_behind(self.prefix, scratch / "begun", spec, firsts.texts)
        judging = texts_behind(self.prefix, scratch / "judging", spec, judged)
        bare = texts_behind_nothing(scratch / "bare", spec, judged if self.prefix.token_ids else [])
        num_first = len(begun) if self._has_room(spec) else 0
        graph = Topology(self.source / graph_file(ar))
        residual = [name for group in place(graph).groups if group.role is Role.RESIDUAL for name in group.tensors]
        gain = PrefixGain(judged, residual) if self.prefix.token_ids else None

        def sink(number: int, name: str, values: NDArray[Any]) -> None:
            index = number - num_first
            if gain is not None and index >= 0:
                gain.see(index % len(judged), name, values, behind=index < len(judged))
            if name not in graph.outputs or index >= len(judged):
                return
            if index >= 0:
                reference.put(index, name, values)
            elif name != "logits":
                firsts.put(number, name, values)

        run_by_pieces(
            graph,
            [*begun[:num_first], *judging, *bare],
            sink,
            lambda done, total: self.ctx.step(done, total, "running the float graph on text"),
            also=residual if gain is not None else (),
        )
        cache = [tensor.name for tensor in spec.outputs(ar) if tensor.name != "logits"]
        for index, (inputs, stretch) in enumerate(zip(begun, stretches, strict=True)):
            batches.add(inputs)
            if num_first and len(batches) < wanted:
                outputs = {name: firsts.get(index, name) for name in cache}
                batches.add(next_inputs(spec, outputs, ar, stretch[ar:], prefix=self.prefix))
        return batches, reference, gain

    def mix(self, plan: QuantPlan, batches: BatchStore) -> tuple[QuantPlan, Choice | None]:
        """The plan with the exceptions that sensitivity asks for, and how they were found, if the recipe wants any."""
        step = next((step for step in self.recipe.recipe if isinstance(step, MixedPrecision)), None)
        if step is None:
            return plan, None
        graph = Topology(self.source / graph_file(self._spec().ars[0]))
        placement = place(graph, float_residual=plan.activations.float_residual)

        def on_piece(done: int, total: int) -> None:
            self.ctx.step(done, total, "measuring what each layer loses")

        choice = choose(graph, placement, plan, step, batches, on_piece)
        return replace(plan, exceptions=choice.exceptions), choice

    def quantise(self, plan: QuantPlan, batches: BatchStore) -> Quantised:
        """All weights and ranges, from the graph for most tokens."""
        graph = Topology(self.source / graph_file(self._spec().ars[0]))

        def on_piece(done: int, total: int, weights: Sequence[str]) -> None:
            self.ctx.step(done, total, weights[0] if weights else "")

        placement = place(graph, float_residual=plan.activations.float_residual)
        return quantise_graph(graph, placement, plan, batches, on_piece)

    def write(self, quantised: Quantised) -> None:
        """Graphs of all sizes, their data file, encodings, and what belongs to the model."""
        spec, out = self._spec(), self.ctx.out
        reference = Topology(self.source / graph_file(spec.ars[0]))
        with WeightsWriter(out) as weights:
            for index, ar in enumerate(spec.ars):
                self.ctx.step(index, len(spec.ars), f"writing {graph_file(ar)}")
                graph = Topology(self.source / graph_file(ar))
                write_qdq(graph, quantised, corresponding_names(reference, graph), out / graph_file(ar), weights)
        write_spec(out, spec)
        carry(self.source, out)
        encodings = Encodings(
            activations=quantised.activations,
            params={name: weight.encoding for name, weight in quantised.weights.items()},
        )
        producer = {"package": "octavo", "version": importlib.metadata.version("octavo")}
        bits = self.recipe.precision.activations.bits
        write_v1(out / "encodings_v1.json", encodings, producer=producer, activation_bits=bits)
        write_v2(out / "encodings.json", encodings, producer=producer)
        write_prefix(out, self.prefix, self.tokenizer, quantised.activations)

    def compare(self, reference: Outputs) -> Comparison:
        """The graph for most tokens against the float one."""
        spec = self._spec()
        got = Outputs(self.ctx.scratch / "quantised", reference.texts)
        run_by_pieces(
            Topology(self.ctx.out / graph_file(spec.ars[0])),
            texts_behind(self.prefix, self.ctx.scratch / "judged-again", spec, reference.texts),
            got.put,
            lambda done, total: self.ctx.step(done, total, "comparing with the float graph"),
        )
        return compare(spec, reference, got)

    def compare_derived(self, reference: Outputs) -> dict[int, float]:
        """The logits of the graphs for fewer tokens against float graphs of the same size."""
        return derived_sqnr_db(
            self._spec(),
            self.source,
            self.ctx.out,
            reference,
            self.ctx.scratch,
            lambda done, total: self.ctx.step(done, total, "comparing the smaller graphs"),
            prefix=self.prefix,
        )

    def _has_room(self, spec: GraphSpec) -> bool:
        """Whether two calls of the largest graph fit behind the prefix."""
        return spec.context_length >= self.prefix.num_tokens + 2 * spec.ars[0]

    def _spec(self) -> GraphSpec:
        return read_spec(self.source)


def check_target(recipe: Recipe, profile: TargetProfile) -> None:
    """Whether a target can take what a recipe asks for.

    Raises:
        RecipeInvalid: The target cannot take a precision, or a prefix.
    """
    if recipe.prefix and not profile.takes_prefix:
        told = f"recipe: prefix is for targets whose cache is filled from outside; {profile.name} fills its own"
        raise RecipeInvalid(told, hint=f"leave out prefix, or the target {profile.name}", param="prefix")
    precision = recipe.precision
    asked = [("precision.activations", precision.activations, profile.activations)]
    asked += [(f"{kind}.qtype", w.qtype, profile.weights) for kind, w in _kinds(recipe)]
    for key, qtype, allowed in asked:
        if qtype not in allowed:
            takes = ", ".join(sorted(allowed))
            raise RecipeInvalid(f"recipe: {key} is {qtype}; {profile.name} takes {takes}", param=key)
    for kind, weights in _kinds(recipe):
        if not weights.qtype.is_float and weights.granularity not in profile.granularities:
            key = f"{kind}.granularity"
            takes = ", ".join(sorted(profile.granularities))
            raise RecipeInvalid(f"recipe: {key} is {weights.granularity}; {profile.name} takes {takes}", param=key)


def _kinds(recipe: Recipe) -> tuple[tuple[str, WeightPrecision], ...]:
    steps = enumerate(recipe.recipe)
    raised = tuple((f"recipe[{index}].to", step.to) for index, step in steps if isinstance(step, MixedPrecision))
    return (("precision.blocks", recipe.precision.blocks), ("precision.lm_head", recipe.precision.lm_head), *raised)


def _outcome(
    out: Path,
    comparison: Comparison,
    quantised: Quantised,
    measured: Mapping[str, float],
    details: Mapping[str, Any],
    warnings: Sequence[str],
) -> StageOutcome:
    losses = [TensorLoss(tensor=name, sqnr_db=value) for name, value in comparison.cache_sqnr_db.items()]
    losses.append(TensorLoss(tensor="logits", sqnr_db=comparison.sqnr_db))
    losses.sort(key=lambda loss: loss.sqnr_db)
    metrics = {
        **comparison.metrics(),
        "size_bytes": float((out / WEIGHTS_FILE).stat().st_size),
        **measured,
    }
    details = {**details, "weights_sqnr_db": dict(sorted(quantised.errors.items(), key=lambda item: item[1]))}
    (out / "quantise.json").write_text(json.dumps(finite({"metrics": metrics, **details}), indent=1) + "\n")
    return StageOutcome(
        metrics=metrics,
        warnings=tuple(warnings),
        versions={name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime", "numpy")},
        worst=tuple(losses[:_NUM_WORST]),
        details={**details, "outputs_sqnr_db": {loss.tensor: loss.sqnr_db for loss in losses}},
    )
