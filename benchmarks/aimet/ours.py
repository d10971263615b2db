"""The builder's quantiser on the same graphs and batches, and what a quantised graph loses."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.aimet.material import Logits, Material
from numpy.typing import NDArray

from octavo_device.spec import graph_file
from octavo_edge.graph.metrics import decibels, energies, mean_kl, mean_nll, top1_agreement
from octavo_edge.graph.weights import WeightsWriter
from octavo_edge.quant.calibrate import quantise_graph
from octavo_edge.quant.encodings import Encodings, write_v1, write_v2
from octavo_edge.quant.grid import INT8
from octavo_edge.quant.placement import WeightKind, place
from octavo_edge.quant.plan import WeightPlan
from octavo_edge.quant.planning import plan_of
from octavo_edge.quant.qdq import write_qdq
from octavo_edge.quant.topology import Topology, corresponding_names
from octavo_edge.recipe import Granularity, Precision, QType, Recipe, SeqMSE, WeightPrecision

# As AIMET's HTP configuration has it: 16 bits for everything that is no weight, the residual too; a table of 16 bits.
_EQUAL = replace(Precision(), residual=QType.INT16, kv_cache=QType.INT16, embedding=QType.INT16)
_INT4 = WeightPrecision(qtype=QType.INT4)
BLOCK_SIZE = 64
_LPBQ = WeightPrecision(qtype=QType.INT4, granularity=Granularity.LPBQ, block_size=BLOCK_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to quantise: the recipe for ours, and what AIMET is told for the same."""

    name: str
    recipe: Recipe
    weight_bits: int = 4
    block_size: int = 0  # LPBQ's
    num_candidates: int = 0  # SeqMSE's
    num_search_batches: int = 0
    num_layers: int | None = None  # that have so few bits; the weights of the others have 8


def methods(*, num_candidates: int, num_search_batches: int) -> dict[str, Method]:
    """Those that both have, by name."""
    search = SeqMSE(num_candidates=num_candidates, num_windows=num_search_batches)
    found = (
        Method(name="W8A16", recipe=Recipe(name="equal-w8a16", precision=_EQUAL), weight_bits=8),
        Method(name="W4A16", recipe=Recipe(name="equal-w4a16", precision=replace(_EQUAL, blocks=_INT4))),
        Method(
            name="LPBQ",
            recipe=Recipe(name="equal-lpbq", precision=replace(_EQUAL, blocks=_LPBQ)),
            block_size=BLOCK_SIZE,
        ),
        Method(
            name="SeqMSE",
            recipe=Recipe(name="equal-seqmse", precision=replace(_EQUAL, blocks=_INT4), recipe=(search,)),
            num_candidates=num_candidates,
            num_search_batches=num_search_batches,
        ),
    )
    return {method.name: method for method in found}


def in_first_layers(method: Method, num_layers: int) -> Method:
    """The method in a model's first layers alone."""
    return replace(method, name=f"{method.name} in the first {num_layers}", num_layers=num_layers)


def search_alone(recipe: Recipe) -> Recipe:
    """The recipe for the layers' weights and nothing else, which is what AIMET's search does."""
    float32 = QType.FLOAT32
    precision = replace(
        recipe.precision,
        activations=float32,
        residual=float32,
        kv_cache=float32,
        embedding=float32,
        lm_head=WeightPrecision(qtype=float32),
    )
    return replace(recipe, precision=precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What AIMET has to be told of a graph."""

    head: str  # the LM head's weight
    blocks: tuple[str, ...]  # the weights of the layers
    floats: tuple[str, ...]  # tensors that both leave in floating point

    def wide(self, method: Method) -> list[str]:
        """Weights of 8 bits: the head, and those of layers that the method leaves out."""
        return [self.head, *_left_out(self.blocks, method.num_layers)]


def facts(source: Material) -> Facts:
    """The weights, and the tensors inside of RMSNorm."""
    placement = place(Topology(source.graph))
    (head,) = (weight.name for weight in placement.weights if weight.kind is WeightKind.HEAD)
    blocks = tuple(weight.name for weight in placement.weights if weight.kind is WeightKind.BLOCK)
    return Facts(head=head, blocks=blocks, floats=tuple(sorted(placement.floats)))


def _left_out(blocks: Sequence[str], num_layers: int | None) -> list[str]:
    """Weights of the layers from ``num_layers`` on; their names begin with ``layers.N.``."""
    return [] if num_layers is None else [name for name in blocks if int(name.split(".")[1]) >= num_layers]


def quantise(source: Material, recipe: Recipe, out: Path, *, num_layers: int | None = None) -> float:
    """Quantised graph and encodings of both schemas into ``out``; seconds of rounding and calibration.

    Weights of layers from ``num_layers`` on have 8 bits.
    """
    graph, plan = Topology(source.graph), plan_of(recipe)
    started = time.perf_counter()
    placement = place(graph, float_residual=plan.activations.float_residual)
    blocks = [weight.name for weight in placement.weights if weight.kind is WeightKind.BLOCK]
    eight_bits = WeightPlan(grid=INT8)
    plan = replace(plan, exceptions={name: eight_bits for name in _left_out(blocks, num_layers)})
    quantised = quantise_graph(graph, placement, plan, source.calibration, lambda *_: None)
    seconds = time.perf_counter() - started
    out.mkdir(parents=True)
    with WeightsWriter(out) as weights:
        write_qdq(graph, quantised, corresponding_names(graph, graph), out / graph_file(source.spec.ars[0]), weights)
    encodings = Encodings(
        activations=quantised.activations,
        params={name: weight.encoding for name, weight in quantised.weights.items()},
    )
    producer = {"package": "octavo", "version": "benchmark"}
    write_v1(out / "1.0.0.encodings", encodings, producer=producer, activation_bits=16)
    write_v2(out / "2.0.0.encodings", encodings, producer=producer)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What the float graph says of the texts that judge."""

    logits: Logits
    nll_nats: tuple[float, ...]  # of each window

    @classmethod
    def of(cls, source: Material, out: Path) -> Exact:
        """Runs it; the logits go into the new folder ``out``."""
        logits = source.logits(source.graph, out)
        nll = [mean_nll(window[:-1], targets) for window, targets in zip(logits, source.targets, strict=True)]
        return cls(logits=logits, nll_nats=tuple(nll))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A quantised graph against the float one, over all texts."""

    mean_kl_nats: float
    ppl: float
    ppl_ratio: float
    top1_ratio: float
    sqnr_db: float
    nll_nats: tuple[float, ...]  # mean negative log likelihood of each window, or of each draw


def loss(source: Material, exact: Exact, got: Logits) -> Loss:
    """Of a graph's logits for the texts that judge."""
    kl, top1, nll, sums = [], [], [], np.zeros(2)
    for left, right, targets in zip(exact.logits, got, source.targets, strict=True):
        kl.append(mean_kl(left, right))
        top1.append(top1_agreement(left, right))
        nll.append(mean_nll(right[:-1], targets))
        sums += energies(left, right)
    # All windows have as many tokens.
    mean = float(np.mean(nll))
    return Loss(
        mean_kl_nats=float(np.mean(kl)),
        ppl=math.exp(mean),
        ppl_ratio=math.exp(mean - float(np.mean(exact.nll_nats))),
        top1_ratio=float(np.mean(top1)),
        sqnr_db=decibels(*sums.tolist()),
        nll_nats=tuple(nll),
    )


def over_draws(losses: Sequence[Loss]) -> Loss:
    """The mean of a method that was used with other windows each time."""
    nll = tuple(float(np.mean(one.nll_nats)) for one in losses)
    return Loss(
        mean_kl_nats=float(np.mean([one.mean_kl_nats for one in losses])),
        ppl=math.exp(float(np.mean(nll))),
        ppl_ratio=math.exp(float(np.mean([math.log(one.ppl_ratio) for one in losses]))),
        top1_ratio=float(np.mean([one.top1_ratio for one in losses])),
        sqnr_db=float(np.mean([one.sqnr_db for one in losses])),
        nll_nats=nll,
    )


def ppl_ratio_error(left: Loss, right: Loss) -> float:
    """The standard error of the ratio of two perplexities, as a part of it.

    Windows (or draws) are independent, and both saw the same: what varies is the difference in each.
    """
    difference: NDArray[Any] = np.subtract(left.nll_nats, right.nll_nats)
    return float(np.std(difference, ddof=1)) / math.sqrt(len(difference))


def agreement_db(left: Logits, right: Logits) -> float:
    """How alike two graphs are; infinite where they are equal."""
    sums = np.zeros(2)
    for one, other in zip(left, right, strict=True):
        sums += energies(one, other)
    return decibels(*sums.tolist())
